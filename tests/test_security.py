"""The table of limits in docs/security.md says what the program has, and each limit is held by a test: here, where no
other test does."""

import asyncio
import importlib
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gradio as gr
import pytest
from httpx2 import StreamError
from mcp.types import Tool as McpTool
from pydantic import ValidationError
from starlette.requests import Request
from tokenizers import Tokenizer, models

from benchmarks.makers import hub_check
from hierchat import child_process
from hierchat.access import files, limits
from hierchat.api.openai import ChatRequest, CompletionRequest
from hierchat.chat import tools
from hierchat.chat.conversations import LONGEST_TITLE
from hierchat.drafting.vllm import custom_proposer
from hierchat.engine.scheduler import MOST_WAITING, QueueFull, Scheduler
from hierchat.models.catalogue import Hub
from hierchat.models.fetch import hub
from hierchat.models.formats.gguf_head import MOST_LAYERS, head_in
from hierchat.models.load import tokenizer_files
from hierchat.models.progress import BrokenFileError
from hierchat.page import event_data, reply_handlers
from hierchat.page.markdown.drawing import render
from hierchat.page.page_sessions import KeptFiles
from hierchat.page.panels import settings_panel
from hierchat.runtime import template
from hierchat.runtime.user_documents import UserDocument
from hierchat.store.records import Attachment, ChatSettings, NewMessage, NewTurn, Project, TurnFigures
from hierchat.texts import pdf, text_files
from tests.models.test_hostile import gguf_of
from tests.testing.fake_service import FakeService
from tests.testing.office_files import packed
from tests.testing.thinkers import thinker
from tests.testing.visitor import Visitor

TABLE = Path("docs/security.md").read_text(encoding="utf-8").partition("## Limits\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.split("\n") if line.startswith("| ")
][1:]
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def numbers(said: str) -> list[float]:
    return [
        float(number.replace(",", "")) * UNITS.get(unit, 1)
        for number, unit in re.findall(r"([\d,]*\d)(?: (\wiB))?", said)
    ]


def value(constant: str) -> Any:
    module, _, name = constant.partition(": ")
    return getattr(importlib.import_module(f"hierchat.{module.replace('/', '.')}"), name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_documents_say_each_limit_and_what_holds_it(row: list[str]) -> None:
    _, said, constants, tests = row
    told, names = numbers(said), re.findall(r"`([^`]+)`", constants)
    sources = "".join(
        Path(f"tests/{one}.py").read_text(encoding="utf-8") for one in re.findall(r"`([^`]+)`", tests)
    )
    assert len(told) >= len(names) > 0
    for constant in names:
        limit = value(constant)
        found = {most for _, most in limit} if isinstance(limit, tuple) else {limit}
        assert found & set(told), (constant, limit)
        shown = {f"{number:{form}}" for number in found for form in ("", "_", ",") if number == int(number)}
        assert constant.partition(": ")[2] in sources or any(one in sources for one in shown), constant


def test_titles_are_cut(fresh: FakeService) -> None:
    user, chats = fresh.user, fresh.store.chats
    chat = chats.create(user)
    fresh.chats.rename(user, chat, "x" * 10_000)
    assert len(chats.get(user, chat).title) == LONGEST_TITLE


def test_one_request_asks_for_one_reply() -> None:
    asked = {"messages": [{"role": "user", "content": "?"}]}
    ChatRequest.model_validate(asked | {"n": 1})
    for kind, body in (
        (ChatRequest, asked | {"n": 2}),
        (CompletionRequest, {"prompt": ["?"]}),
        (CompletionRequest, {"prompt": "?", "n": 2}),
    ):
        with pytest.raises(ValidationError):
            kind.model_validate(body)


def test_so_many_replies_wait() -> None:
    scheduler = Scheduler()
    waiting = [scheduler.join() for _ in range(MOST_WAITING)]
    with pytest.raises(QueueFull, match="Too many replies are waiting"):
        scheduler.join()
    assert scheduler.waiting == waiting


def test_pages_beyond_those_that_are_remembered_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_PAGES", 3)
    pages = limits.PageOwnerMiddleware(lambda *given: None, alone=False)  # type: ignore[arg-type, return-value]
    for number in range(9):
        assert pages._is_own(str(number), "ann")
    assert list(pages._owners) == ["6", "7", "8"]
    assert value("page/page_sessions: MOST_PAGES") == 200  # Gradio's own: state_session_capacity


def test_a_large_pdf_drafts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text_files, "LARGEST_PDF", 1 << 20)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-" + bytes(1 << 20))
    reader = text_files.TextReader([tmp_path / "a.pdf"])
    assert list(reader) == []
    assert "a PDF file of more than 1 MB; split it" in " ".join(reader.passed_over)


def test_long_lists_of_a_head_are_not_kept() -> None:
    values = [("llama.few", [1] * MOST_LAYERS), ("llama.many", [1] * (MOST_LAYERS + 1))]
    head = head_in(gguf_of([("general.architecture", "llama"), *values], []) + bytes(64))
    assert "llama.few" in head.by_layer
    assert "llama.many" not in {**head.values, **head.by_layer}


def test_words_for_the_hub_are_cut_and_so_is_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def answered(path: str, what: dict[str, Any], about: str) -> list[Any]:
        asked.append(what)
        return [{"id": f"a/{number}"} for number in range(999)]

    monkeypatch.setattr(hub, "_json", answered)
    assert len(hub.search("x" * 9_000)) <= hub.MOST_FOUND
    assert len(asked[0]["search"]) == hub.MOST_WORDS


def test_files_beyond_those_that_are_taken_at_once_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event: Any = Mock(data={"tickets": [f"t{number}" for number in range(2_000)]})
    taken: list[str] = []
    monkeypatch.setattr(event_data.files, "take", lambda ticket, name: taken.append(ticket) or tmp_path)
    monkeypatch.setattr(event_data.files, "remove", lambda path: None)
    for most in (reply_handlers.MOST_FILES, settings_panel.MOST_FILES, event_data.MOST_FILES):
        taken.clear()
        with event_data.PageEvent.files(event, most) as paths:
            assert len(paths) == len(taken) == most
    assert KeptFiles()._most == value("page/page_sessions: MOST_CHARACTERS")


def test_a_model_that_would_fill_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": files._SPARE + 100})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: usage)
    assert files._has_room(tmp_path / "a.gguf", 100)
    assert not files._has_room(tmp_path / "a.gguf", 101)


def test_imports_leave_room_for_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are sent, by whomever: nothing of one that has no room stays."""
    taken = files.Files(tmp_path / "transfer")
    monkeypatch.setattr(files, "files", taken)
    free = iter([files._SPARE, files._SPARE, files._SPARE - 1])
    usage = type("Usage", (), {"free": property(lambda self: next(free))})
    monkeypatch.setattr(files.shutil, "disk_usage", lambda place: usage())

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 1_000, "more_body": True}

    scope = {"type": "http", "method": "PUT", "query_string": b"name=chats.json", "headers": []}
    answer = asyncio.run(files.take_in(Request(scope, receive)))
    assert (answer.status_code, b"Is the disk full?" in answer.body) == (507, True)
    assert not [path for path in (tmp_path / "transfer").rglob("*") if path.is_file()]


MARKUP = "<img src=x onerror=alert(1)><b>\u202e"


def test_names_that_are_markup_are_text(fresh: FakeService) -> None:
    """Of chats, projects, presets, attachments, documents and texts that draft."""
    store, user = fresh.store, fresh.user
    project = store.projects.save(user, Project(0, MARKUP, MARKUP, MARKUP))
    chat = store.chats.create(user, MARKUP, project)
    preset = store.presets.create(user, MARKUP, ChatSettings(MARKUP, {}))
    store.presets.set_default(user, preset)
    new = NewMessage(None, MARKUP, files=[Attachment(MARKUP, 9, MARKUP)])
    replied_to = store.messages.add(user, chat, new)
    turn = NewTurn(MARKUP, "k", {}, 0, True)
    reply = store.replies.begin(user, chat, replied_to, turn)
    store.replies.append(reply, MARKUP, [1], [MARKUP])
    store.replies.finish(reply, MARKUP, "complete", TurnFigures(stop_string=MARKUP))
    fresh.texts.listed = [UserDocument(MARKUP, 9, 9, (MARKUP,), (MARKUP,), True, False)]
    for place in ({"c": str(chat)}, *({"view": view} for view in ("settings", "insights"))):
        page = Visitor(fresh, **place)
        blocks = page.app.blocks.values()
        names = [block.elem_id for block in blocks if isinstance(block, gr.HTML) and block.elem_id]
        shown = [page.html(name) for name in names]
        assert any("&lt;img" in part for part in shown)
        assert not [part for part in shown if "<img src=x" in part or "onerror=alert(1)>" in part]


def test_a_small_archive_that_unpacks_to_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = packed({"a": b"0" * 1_000})
    monkeypatch.setattr(pdf, "_MOST_UNPACKED", 1_000)
    pdf._opened(raw).close()
    monkeypatch.setattr(pdf, "_MOST_UNPACKED", 999)
    with pytest.raises(MemoryError):
        pdf._opened(raw)


def test_addresses_together_have_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of them fewer; this machine is counted apart."""
    monkeypatch.setattr(limits._LimitedConnection, "_watch", lambda self: None)
    monkeypatch.setattr(limits, "ALL_ELSEWHERE", 5)
    monkeypatch.setattr(limits, "ELSEWHERE", 3)
    monkeypatch.setattr(limits, "HERE", 2)
    kind = type("Bounded", (limits._LimitedConnection,), {"held": Counter()})
    let_in = []
    for address in ["10.0.0.1"] * 5 + ["10.0.0.2"] * 5 + ["127.0.0.1"] * 3:
        wire = Mock()
        wire.get_extra_info.return_value = (address, 5)
        kind().connection_made(wire)
        let_in.append(not wire.close.called)
        assert all(b" 503 " in call.args[0] for call in wire.write.call_args_list)
    assert let_in == [True] * 3 + [False] * 2 + [True] * 2 + [False] * 3 + [True] * 2 + [False]


def test_an_answer_of_a_tool_server_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_MOST_BYTES", 1 << 20)

    class Answer:
        async def aiter_bytes(self) -> Any:
            for _ in range(3):
                yield bytes(1 << 19)

    answer: Any = Answer()
    asyncio.run(tools._bound(answer))
    with pytest.raises(StreamError, match="it is longer than 16 MB"):
        asyncio.run(answer.aread())


def test_reading_a_pdf_has_so_much_memory() -> None:
    takes = "pdf._pages = lambda raw: iter([str(len(bytearray(pdf._MEMORY)))])"
    code = f"import sys; from hierchat.texts import pdf; {takes}; sys.exit(pdf._main(9, 60, '.pdf'))"
    assert subprocess.run([sys.executable, "-c", code], input=b"").returncode == pdf._TOO_MUCH


@pytest.mark.parametrize(("bound", "most"), [("_MOST_DATA", 1 << 20), ("WALL_SECONDS", 0)])
def test_a_tokenizer_beyond_its_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_files, bound, most)
    with pytest.raises(BrokenFileError, match="Choose another model"):
        tokenizer_files.read_tokenizer(tmp_path)


def test_a_template_that_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all, whatever the system counts of the processor."""
    monkeypatch.setattr(child_process, "PATIENCE_SECONDS", 0)
    template._renderer._end()
    loops = "{% for a in range(99999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    with pytest.raises(template.TemplateStopped):
        template.ChatTemplate(thinker(loops)).text([])


def test_formulas_beyond_their_bounds_stay_text() -> None:
    named = ("_MOST_CHARACTERS", "_MOST_LINES", "_DEEPEST")
    characters, lines, deepest = (value(f"page/markdown/mathematics: {name}") for name in named)
    for more, drawn in ((-10, True), (10, False)):
        nested = deepest + more // 2
        rows = "x\\\\\n" * (lines + more // 2)
        for formula in (
            "$$\n" + "x" * (characters + more) + "\n$$",
            "$$\n" + "{" * nested + "x" + "}" * nested + "\n$$",
            "\\begin{align}\n" + rows + "\\end{align}",
        ):
            assert ("<math" in render(formula)) == drawn


def test_markdown_beyond_its_bounds_stays_text() -> None:
    deepest, longest = (value(f"page/markdown/parser: {name}") for name in ("DEEPEST", "_LONGEST_ADDRESS"))
    for levels, drawn in ((deepest - 3, deepest - 3), (deepest, 0)):
        assert render("> " * levels + "end").count("<blockquote") == drawn
    for length in (longest, longest + 1):
        address = "http://a.example/".ljust(length, "x")
        for text in (address, f"[a]({address})"):
            assert ("<a " in render(text)) == (length == longest)


def test_of_a_configuration_on_the_hub_so_much_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hub_check, "fetch_beginning", lambda repo, revision, file, most: b'{"a": "' + b"x" * most
    )
    monkeypatch.setattr(hub_check, "_JSON", 100)
    with pytest.raises(BrokenFileError, match=r"config\.json of a/b is no JSON"):
        hub_check._json(Hub(repo="a/b"), "config.json")


def test_tools_beyond_those_that_are_taken_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    many = type("Listed", (), {"tools": [McpTool(name=f"t{n}", input_schema={}) for n in range(999)]})
    monkeypatch.setattr(tools.ToolServers, "_asking", lambda *given: many)
    held: Any = type("Held", (), {"server": "s", "digest": ""})
    monkeypatch.setattr(tools.ToolServers, "_connected", lambda *given: held)
    servers = tools.ToolServers.__new__(tools.ToolServers)
    assert len(servers.tools("s", threading.Event())) == tools.MOST_TOOLS
    big = {"type": "object", "description": "x" * tools.MOST_SCHEMA}
    told = tools._tool(held, McpTool(name="t", input_schema=big))
    assert told.schema == '{"type": "object", "properties": {}}'


def test_the_channel_has_so_many_connections_and_ends_silent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_proposer, "CONNECTIONS", 2)
    monkeypatch.setattr(custom_proposer._Connection, "timeout", 0.2)
    assert value("drafting/vllm/custom_proposer: SILENT_SECONDS") == 600.0
    server = custom_proposer.ChannelServer({}, "a token of some length", 0)
    wires = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(3)]
    assert [wire.recv(1) for wire in wires] == [b""] * 3  # the third at once, the others for their silence
    for wire in wires:
        wire.close()
    server.close()
