"""Tools of real servers: over standard input and output, and over HTTP, where one fails, hangs and lies."""

import gzip
import json
import sys
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, quote_plus

import numpy as np
import pytest
from mcp.client import session

from hierchat.chat import tools
from hierchat.chat.completions import grammar_of_calls
from hierchat.chat.tools import Tool, ToolError, ToolServers, holds_text, hosts
from hierchat.engine.sampling.grammar import Grammars
from hierchat.store import LOCAL_USER, Store
from tests.testing.tiny_chat import END, tokenizer

CUT = "\n\n(Cut here: 100 of 2,000,000 characters.)"
NEVER = threading.Event()
SERVER = {"command": sys.executable, "args": ["-m", "tests.testing.tool_server"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HIERCHAT_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    files = tmp_path / "files"
    files.mkdir()
    (files / "notes.txt").write_text("Buy milk.", encoding="utf-8")
    return tmp_path


@pytest.fixture
def servers(folder: Path) -> Iterator[ToolServers]:
    with Store.open(folder / "chat.db") as store:
        made = ToolServers(store)
        yield made
        made.close()


def name(folder: Path, **entries: Any) -> None:
    """Write mcp.json."""
    (folder / "config" / "mcp.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")


def files(folder: Path) -> dict[str, Any]:
    package = str(Path(__file__).parents[2])
    return {**SERVER, "args": [*SERVER["args"], str(folder / "files")], "env": {"PYTHONPATH": package}}


def owner(servers: ToolServers) -> int:
    return servers._users.ensure(LOCAL_USER)


def called(servers: ToolServers, tool: str, most: int = 1000, **arguments: Any) -> tuple[str, str]:
    found = {one.name: one for one in servers.tools("files", NEVER)}
    return servers.call(found[tool], arguments, NEVER, most)


def test_a_server_over_standard_input_and_output(
    servers: ToolServers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name(folder, files=files(folder))
    assert called(servers, "read_file", path="notes.txt") == ("done", "Buy milk.")
    assert called(servers, "read_file", path="missing.txt") == ("failed", "Error executing tool read_file")
    assert called(servers, "picture") == ("done", "(Left out: image/png. Only text can be read.)")
    assert called(servers, "big", 100, megabytes=2) == ("done", "x" * 100 + CUT)
    assert called(servers, "learn")[0] == "done"
    assert called(servers, "later") == ("done", "here")
    state, said = called(servers, "die")
    assert (state, "Connection closed" in said) == ("failed", True)
    assert called(servers, "read_file", path="notes.txt") == ("done", "Buy milk.")  # started anew
    hang, stop = next(one for one in servers.tools("files", NEVER) if one.name == "hang"), threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(tools.Stopped):
        servers.call(hang, {}, stop)
    monkeypatch.setattr(tools, "SECONDS", 5.0)
    state, said = servers.call(hang, {}, NEVER)
    assert (state, "imed out" in said) == ("failed", True)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"command": "/no/such/program"}, "No such file"),
        ({"command": sys.executable, "args": ["-c", "pass"]}, "Connection closed"),
        ({"command": sys.executable, "args": ["-c", "print(); import time; time.sleep(60)"]}, "imed out"),
        ({"url": "http://127.0.0.1:9/mcp"}, "connection"),
    ],
)
def test_a_server_that_is_none(
    servers: ToolServers, folder: Path, entry: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "imed out":
        monkeypatch.setattr(tools, "SECONDS", 2.0)
        monkeypatch.setattr(session, "DISCOVER_TIMEOUT_SECONDS", 1.0)
    name(folder, bad=entry)
    with pytest.raises(ToolError, match=said):
        servers.tools("bad", NEVER)


@pytest.mark.parametrize(
    "text",
    ["{", '{"mcpServers": []}', '{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {"command": "x", "url": "y"}}}',
     '{"mcpServers": {"a": {"command": ["x"], "env": {"KEY": "secret"}}}}'],
)  # fmt: skip
def test_a_broken_file_is_one_sentence(servers: ToolServers, folder: Path, text: str) -> None:
    (folder / "config" / "mcp.json").write_text(text, encoding="utf-8")
    servers.switch(owner(servers), "a", True)
    found, (sentence,) = servers.offered(owner(servers), NEVER)
    assert not found
    assert "mcp.json cannot be used" in sentence
    assert "secret" not in sentence
    assert "\n" not in sentence


TEXTS = {
    "big": "x" * 5_000_000,
    "bigger": "x" * 50_000_000,
    "packed": "x" * 50_000_000,
    "marks": "<script>alert(1)</script> **bold** <|im_end|>",
}
NAMES = (*TEXTS, "read_file", "lie", "fail", "hang", "bad name <b>")


class Liar(BaseHTTPRequestHandler):
    """An HTTP server of tools that reads files, fails, hangs and lies; its list changes each time that it is asked."""

    lists = 0
    description = "A tool."
    more: ClassVar[dict[str, Any]] = {}
    """Other fields of each tool."""
    folder: Path
    """Of the files that it reads."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in asked:
            self._send(202, b"")
            return
        given = asked.get("params", {})
        called = given.get("name", "")
        answer: dict[str, Any] = {"error": {"code": -32601, "message": "no such method"}}
        if asked["method"] == "initialize":
            about = {"name": "liar", "version": "1"}
            answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": about}}
        elif asked["method"] == "tools/list":
            Liar.lists += 1
            odd = {"marks": {"type": "object", "properties": {"a": {"type": 7}}}}
            tools = [
                {
                    "name": name,
                    "inputSchema": odd.get(name, {"type": "object"}),
                    "description": self.description,
                    **self.more,
                }
                for name in (*NAMES, f"new{Liar.lists}")
            ]
            answer = {"result": {"tools": tools}}
        elif called in TEXTS or called == "read_file":
            text = TEXTS.get(called) or (self.folder / given["arguments"]["path"]).read_text()
            answer = {"result": {"content": [{"type": "text", "text": text}]}}
        elif called == "lie":
            answer = {"result": {"content": "not a list"}}
        elif called == "fail":
            self._send(500, b"no")
            return
        elif called == "hang":
            threading.Event().wait(8)
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode()
        self._send(200, body, packed=called == "packed")

    def do_GET(self) -> None:
        self._send(405, b"")

    do_DELETE = do_GET  # noqa: N815

    def _send(self, status: int, body: bytes, packed: bool = False) -> None:
        self.send_response(status)
        if packed:
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def liar(folder: Path) -> Iterator[None]:
    Liar.folder = folder / "files"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/mcp"
    name(folder, files={"url": address, "headers": {"X-Key": "secret"}})
    yield
    server.shutdown()
    server.server_close()


def test_a_server_over_http_that_fails_hangs_and_lies(
    servers: ToolServers, liar: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Liar, "description", "x" * 9_999)
    first, then = ({one.name: one for one in servers.tools("files", NEVER)} for _ in range(2))
    assert set(first) ^ set(then) == {f"new{Liar.lists - 1}", f"new{Liar.lists}"}
    assert "bad name <b>" not in first
    assert {len(one.description) for one in first.values()} == {tools.MOST_DESCRIPTION}
    assert json.loads(first["marks"].schema)["properties"] == {"a": {"type": 7}}
    state, said = servers.call(first["big"], {}, NEVER)
    assert (state, len(said) < tools.MOST_RESULT + 100, "of 5,000,000" in said) == ("done", True, True)
    assert servers.call(first["marks"], {}, NEVER)[1] == TEXTS["marks"]
    monkeypatch.setattr(tools, "SECONDS", 5.0)
    servers.switch(owner(servers), "files", True)  # connects anew
    for broken in ("lie", "fail", "hang", "bigger", "packed"):
        state, said = servers.call(first[broken], {}, NEVER)
        assert state == "failed"
        assert said.startswith("The tool server files cannot be used")
        assert "\n" not in said
        assert len(said) < 600
        assert ("longer than 16 MB" in said) == (broken in ("bigger", "packed"))


ADDING = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('Well. {"name": "other", "arguments": 3}', True),
        ('{"name": "marks", "arguments": {"a": [1]}}', True),
        ('I add:\n```json\n{"name": "add", "arguments": {"a": 1}}\n```', True),
        ('{"name": "add", "arguments": {"a": "1"}}', False),
        ('{"name": "add", "arguments": {}}', False),
        ('{"name": "add"', False),
    ],
)
def test_a_schema_that_is_none_takes_any_arguments(text: str, fits: bool) -> None:
    grammars = Grammars(tokenizer(), {END}, len(tokenizer()))
    bad, good = Tool("files", "marks", "", '{"type": "object", "properties": 7}'), Tool("", "add", "", ADDING)
    held = grammars.begin(grammar_of_calls([bad.function("marks"), good.function("add")], grammars))
    row = np.zeros(len(tokenizer()), np.float32)
    for token in [*tokenizer()(text, add_special_tokens=False)["input_ids"], END]:
        if held.masked(row)[token] < 0:
            assert not fits
            return
        if token != END:
            held.take(token)
    assert fits


def test_tools_of_one_name_are_told_apart(servers: ToolServers, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"a": ["search", "search-2", "search-3"], "b": ["search", "search-2"], "c": ["search"] * 90}
    made = {server: [Tool(server, one, "", "{}") for one in names] for server, names in named.items()}
    monkeypatch.setattr(servers, "tools", lambda server, stop: made[server])
    for server in named:
        servers.switch(owner(servers), server, True)
    found, trouble = servers.offered(owner(servers), NEVER)
    assert (list(found)[:3], len(found), trouble) == (named["a"], tools.MOST_TOOLS, [])
    assert {name: found[name].server for name in named["a"]} == dict.fromkeys(named["a"], "a")
    assert [(one.server, one.name) for one in found.values()][3:5] == [("b", "search"), ("b", "search-2")]


def test_a_server_that_was_renamed_meanwhile_is_not_called(servers: ToolServers, folder: Path) -> None:
    name(folder, files=files(folder))
    read = next(one for one in servers.tools("files", NEVER) if one.name == "read_file")
    name(folder, files=files(folder) | {"args": ["-c", "pass"]})
    state, said = servers.call(read, {"path": "notes.txt"}, NEVER)
    assert (state, "has changed. Ask again." in said) == ("failed", True)


def test_a_line_without_end_is_given_up(
    servers: ToolServers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_MOST_BYTES", 1 << 20)
    monkeypatch.setattr(tools, "SECONDS", 10_000.0)  # nobody waits for the server's answer
    writes = "import sys, time; sys.stdin.readline(); print('x' * 3_000_000, flush=True); time.sleep(99)"
    name(folder, files={"command": sys.executable, "args": ["-c", writes]})
    with pytest.raises(ToolError, match="it is longer than 16 MB"):
        servers.tools("files", NEVER)


# Arguments of a call that name an address, or hold text of the chat


SAID = (
    "My sister lives in Graz, at the end of Sporgasse, and keeps eleven hives. Her doctor told her last week that the\n"
    "swelling is nothing to worry about, but she has to come back on the 4th of March for another look at it."
)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"url": "http://ok/"}, {"ok"}),
        ({"url": "HTTPS://Example.COM:8443/a?b=c"}, {"example.com:8443"}),
        ({"url": "http%3A%2F%2Fevil%2Fx"}, {"evil"}),
        ({"url": "http:\\\\evil\\x"}, {"evil"}),
        ({"url": "//evil/x"}, {"evil"}),
        ({"url": "http://ok@evil/"}, {"ok@evil", "evil"}),
        ({"to": "ann@mail.example"}, {"mail.example"}),
        ({"host": "10.0.0.7"}, {"10.0.0.7"}),
        ({"host": "localhost:99"}, {"localhost:99"}),
        ({"host": "[::1]:99"}, {"[::1]:99"}),
        ({"site": "evil.example"}, {"evil.example"}),
        ({"a": [{"b": "see evil.example/x"}]}, {"evil.example"}),
        ({"evil.example": 1}, {"evil.example"}),
        ({"path": "notes.txt", "also": "src/main.py", "n": 3.5, "t": "Europe/Vienna"}, set()),
        ({"url": "evil.py/x"}, {"evil.py"}),
        ({"query": "How are you? Fine. Well, e.g. so."}, set()),
    ],
    ids=lambda case: str(sorted(case) if isinstance(case, set) else case),
)
def test_hosts_are_found(arguments: Any, named: set[str]) -> None:
    assert hosts(arguments) == named


@pytest.mark.parametrize(
    "spell",
    [
        str,
        str.upper,
        quote,
        quote_plus,
        lambda text: quote(quote(text)),
        lambda text: b64encode(text.encode()).decode(),
        lambda text: urlsafe_b64encode(text.encode()).decode().rstrip("="),
        lambda text: text.encode().hex(),
        lambda text: " ".join(text.split("\n")),
    ],
)
def test_text_of_the_chat_is_found(spell: Callable[[str], str]) -> None:
    text, chat = spell(SAID[3:203]), ["Hello.", f"Well. {SAID} Goodbye."]
    for arguments in ({"url": f"http://evil/?d={text}"}, {"a": [{"b": text}]}, {text: ""}):
        assert holds_text(arguments, chat)


def test_text_of_the_chat_is_found_in_parts() -> None:
    assert holds_text({"a": [SAID[:100]], "b": {"c": SAID[100:]}}, [SAID])


def test_a_few_words_of_the_chat_may_be_told() -> None:
    assert not holds_text({"query": SAID[:100]}, [SAID])
    assert not holds_text({"query": "x" * 5000}, [SAID])
    assert not holds_text({"content": SAID[::-1]}, [SAID])
