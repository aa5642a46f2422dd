"""Call tools of servers that speak MCP (mcp.json), after the user has allowed it, and only in the owner's chats.
A server is connected when a reply may call its tools, until it fails. The length of its texts is limited."""

import hashlib
import json
import os
import re
import threading
from base64 import urlsafe_b64decode
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote_plus

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.streams.text import TextReceiveStream
from pydantic import BaseModel, Field, ValidationError, model_validator

from hierchat.config import config_dir
from hierchat.engine.sampling.grammar import GrammarError, bounded
from hierchat.engine.scheduler import POLL_SECONDS
from hierchat.language import _, later
from hierchat.store import Store
from hierchat.store.records import CallState, Message, ToolCall
from hierchat.texts.text_files import KNOWN

if TYPE_CHECKING:
    import httpx2
    from mcp import Client

MOST_CALLS = 8
MOST_REPEATS = 2
"""Times that a reply may call the same as before, which is not done again."""
ANSWER_NOW = "You have this result already. Answer the question with it now, in a sentence. Call no tool."
"""Instruction that the model reads below a result that it asked for again."""
SECONDS = 60.0
"""How long a server may take to start, and for a call."""
MOST_TOOLS, MOST_DESCRIPTION, MOST_SCHEMA, MOST_REASON = 64, 1_000, 20_000, 300
"""What is taken of a server: tools, and characters of each and of an error."""
_MOST_BYTES = 1 << 24
"""Bytes of an event or answer of a server over HTTP, which is held whole."""
MOST_RESULT = 20_000
"""Characters of a result that the model reads."""
_NAME = re.compile(r"[\w.:/-]{1,64}", re.ASCII)
_BROKEN = later("{path} cannot be used: {why}. Correct it.")
_REFUSED = "The user did not allow this call."
"""What the model reads then."""
T = TypeVar("T")


class ToolError(Exception):
    """Raised when a server or mcp.json cannot be used. The message is for the page."""


class Stopped(Exception):
    """Raised when the user stopped the reply meanwhile."""


class ServerEntry(BaseModel, frozen=True):
    """Entry of mcp.json: a program on this machine, or an address. Fields of other programs are skipped."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    url: str = ""
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has a command or a url")
        return self


class _McpFile(BaseModel):
    mcpServers: dict[str, ServerEntry] = Field(default_factory=dict)  # noqa: N815


@dataclass(frozen=True, slots=True)
class Tool:
    server: str
    name: str
    description: str
    schema: str
    """JSON schema of its arguments."""
    entry: str = ""
    """Digest of the server's entry in mcp.json."""
    described: str = ""
    """Digest of title, annotations, description and schema, which are cut above."""

    def function(self, name: str) -> dict[str, Any]:
        """Return the tool's description under this name as OpenAI's protocol and chat templates have it."""
        said = {"name": name, "description": self.description, "parameters": json.loads(self.schema)}
        return {"type": "function", "function": said}


def mcp_file() -> Path:
    return config_dir() / "mcp.json"


def read_servers() -> dict[str, ServerEntry]:
    """Return the servers that mcp.json names; empty if there is no such file. Raises ToolError."""
    try:
        return _McpFile.model_validate_json(mcp_file().read_bytes()).mcpServers
    except FileNotFoundError:
        return {}
    except ValidationError as error:  # without the values, which may be secret
        first = error.errors(include_url=False, include_input=False)[0]
        why = f"{'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}"
    except OSError as error:
        why = str(error)
    raise ToolError(_(_BROKEN).format(path=mcp_file(), why=why))


@dataclass(frozen=True, slots=True)
class _Connection:
    server: str
    entry: ServerEntry
    ready: "Future[Client]"
    ends: Future[None]
    faults: list[str]
    """Reasons why it was given up, where the client does not say so."""

    @property
    def digest(self) -> str:
        return _digest(self.entry)


class ToolServers:
    """Holds the servers of mcp.json: which are on, their tools, calls, and what users allowed."""

    def __init__(self, store: Store) -> None:
        self._users = store.users
        self._open: dict[str, _Connection] = {}
        self._lock = threading.Lock()
        self._loops = ExitStack()
        self._asked: dict[tuple[int, int], Future[str]] = {}
        """User and message of a call that waits -> what the user will say."""
        self._allowed: dict[tuple[int, Tool], set[str]] = {}
        """Chat, and a tool as it was described when it was allowed there -> hosts that its arguments may name."""

    @cached_property
    def _loop(self) -> BlockingPortal:
        return self._loops.enter_context(start_blocking_portal(name="tools"))

    def switch(self, user_id: int, server: str, on: bool) -> None:
        """Switch a server on or off for this user, who is the owner."""
        names = self._users.tool_servers(user_id) - {server}
        on_now = sorted(names | {server} if on else names)
        self._users.choose(user_id, tool_servers=json.dumps(on_now))
        self._end(server)

    def offered(self, user_id: int, stop: threading.Event) -> tuple[dict[str, Tool], list[str]]:
        """Return a user's tools by the names for the model, and why servers are unusable. Raises Stopped."""
        found: dict[str, Tool] = {}
        trouble: list[str] = []
        for server in sorted(self._users.tool_servers(user_id)):
            try:
                for tool in self.tools(server, stop):
                    names = (tool.name, *(f"{tool.name}-{number}" for number in range(2, MOST_TOOLS + 2)))
                    if len(found) < MOST_TOOLS:
                        found[next(name for name in names if name not in found)] = tool
            except ToolError as error:
                trouble.append(str(error))
        return found, trouble

    def tools(self, server: str, stop: threading.Event) -> list[Tool]:
        """Ask a server for its tools as they are now, each name once. Raises ToolError, Stopped."""
        connection = self._connected(server)
        listed = self._asking(connection, stop, lambda client: client.list_tools(cache_mode="bypass"))
        named = {one.name: one for one in reversed(listed.tools[:MOST_TOOLS]) if _NAME.fullmatch(one.name)}
        return [_tool(connection, one) for one in reversed(named.values())]

    def call(
        self, tool: Tool, arguments: Mapping[str, Any], stop: threading.Event, most: int = MOST_RESULT
    ) -> tuple[CallState, str]:
        """Call a tool; return how it ended, and at most `most` characters of its text. Raises Stopped."""
        try:
            connection = self._connected(tool.server)
            if connection.digest != tool.entry:
                said = _("The entry of {name} in {path} has changed. Ask again.")
                raise ToolError(said.format(name=tool.server, path=mcp_file()))
            result = self._asking(
                connection, stop, lambda client: client.call_tool(tool.name, dict(arguments))
            )
        except ToolError as error:
            return "failed", str(error)
        return ("failed" if result.is_error else "done"), _text(result, min(most, MOST_RESULT))

    def calling(
        self,
        message: Message,
        tool: Tool,
        arguments: Mapping[str, Any],
        user_id: int,
        stop: threading.Event,
        most: int,
        texts: Iterable[str],
    ) -> Iterator[ToolCall]:
        """Yield a call's states: waiting for the user, working, ended, its result of at most `most` characters.
        `texts`: the chat's, which may leave it only if the user allows that."""
        call = ToolCall(tool.server, tool.name, json.dumps(arguments, ensure_ascii=False, indent=2))
        place, everywhere = (user_id, message.id), (message.conversation_id, tool)
        answer: Future[str] = Future()
        allowed, named = self._allowed.get(everywhere), hosts(arguments)
        if new := sorted(named - (allowed or set())):
            call = replace(call, why=_("It names {hosts}.").format(hosts=", ".join(new)))
        if leaks := holds_text(arguments, texts):
            call = replace(call, why=" ".join([_("It holds text of this chat."), call.why]).strip())
        try:
            if allowed is None or new or leaks:
                self._asked[place] = answer
                yield call
                said = _awaited(answer, stop)
                if said not in ("once", "chat"):
                    yield replace(call, state="refused", result=_REFUSED)
                    return
                if said == "chat":
                    self._allowed.setdefault(everywhere, set()).update(named)
            yield replace(call, state="running")
            state, result = self.call(tool, arguments, stop, most)
            yield replace(call, state=state, result=result)
        except Stopped:
            yield replace(call, state="stopped")
        finally:
            self._asked.pop(place, None)

    def waits(self, user_id: int, message_id: int | None) -> bool:
        """Return whether a call of this reply waits for its user."""
        return (user_id, message_id) in self._asked

    def answer(self, user_id: int, message_id: int, said: str) -> None:
        """Pass on the user's answer to a call that waits: once, chat or no."""
        if answer := self._asked.pop((user_id, message_id), None):
            answer.set_result(said)

    def close(self) -> None:
        """End all servers that hierchat started, and close the connections."""
        if "_loop" in vars(self):
            self._loop.call(self._loop.stop, True)
        self._loops.close()

    def _asking(
        self, held: _Connection, stop: threading.Event, ask: "Callable[[Client], Coroutine[Any, Any, T]]"
    ) -> T:
        """Send a request to a server; one that fails is ended. Raises ToolError, Stopped."""
        try:
            client = _awaited(held.ready, stop)
            return _awaited(self._loop.start_task_soon(ask, client), stop)
        except BaseException as error:
            self._end(held.server)
            if isinstance(error, Stopped):
                raise
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            why = next(iter(held.faults), " ".join(str(first).split()))[:MOST_REASON].rstrip(".")
            said = _("The tool server {name} cannot be used: {why}. It is named in {path}.")
            why = why or type(first).__name__
            raise ToolError(said.format(name=held.server, why=why, path=mcp_file())) from error

    def _connected(self, server: str) -> _Connection:
        entry = read_servers().get(server)
        if entry is None:
            self._end(server)
            raise ToolError(_(_BROKEN).format(path=mcp_file(), why=f"it names no server {server}"))
        with self._lock:
            held = self._open.get(server)
            if held is None or held.entry != entry or held.ends.done():
                self._end(server)
                ready: Future[Client] = Future()
                faults: list[str] = []
                ends = self._loop.start_task_soon(_hold, entry, ready, faults)
                held = self._open[server] = _Connection(server, entry, ready, ends, faults)
        return held

    def _end(self, server: str) -> None:
        if held := self._open.pop(server, None):
            held.ends.cancel()


def _awaited(future: Future[T], stop: threading.Event) -> T:
    while not wait([future], POLL_SECONDS).done:
        if stop.is_set():
            raise Stopped
    return future.result()


async def _hold(entry: ServerEntry, ready: "Future[Client]", faults: list[str]) -> None:
    """Keep one connection to a server open until it is cancelled."""

    def give_up(why: str) -> None:
        faults.append(why)
        scope.cancel()

    _give_up.set(give_up)
    try:
        import httpx2
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client import stdio
        from mcp.client.streamable_http import streamable_http_client

        stdio.TextReceiveStream = _BoundedLines  # type: ignore[misc]  # it bounds no line itself
        with anyio.CancelScope() as scope, open(os.devnull, "w") as nowhere:
            over_http = httpx2.AsyncClient(
                headers=entry.headers, timeout=SECONDS, event_hooks={"response": [_bound]}
            )
            async with over_http as web:
                program = StdioServerParameters(command=entry.command, args=list(entry.args), env=entry.env)
                site = streamable_http_client(entry.url, http_client=web, max_sse_event_size=_MOST_BYTES)
                way = stdio_client(program, nowhere) if entry.command else site
                async with Client(way, read_timeout_seconds=SECONDS) as client:
                    ready.set_result(client)
                    await anyio.sleep_forever()
        raise anyio.BrokenResourceError  # given up
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise


_give_up: ContextVar[Callable[[str], object]] = ContextVar("give_up")
"""Ends this connection, and keeps why. Without it `mcp` waits until the server ends or an answer is late."""
_TOO_LONG = f"it is longer than {_MOST_BYTES >> 20} MB"


class _BoundedLines(TextReceiveStream):
    """Text that a server writes to its standard output, in lines of bounded length."""

    _length = 0

    async def receive(self) -> str:
        text = await super().receive()
        _before, newline, rest = text.rpartition("\n")
        self._length = len(rest) if newline else self._length + len(text)
        if self._length > _MOST_BYTES:
            _give_up.get()(_TOO_LONG)
            raise anyio.BrokenResourceError
        return text


async def _bound(response: "httpx2.Response") -> None:
    from httpx2 import StreamError  # what `mcp` makes an error of the call of

    async def read() -> bytes:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MOST_BYTES:
                raise StreamError(_TOO_LONG)
        return bytes(body)

    response.aread = read  # type: ignore[method-assign]


def _tool(held: _Connection, tool: Any) -> Tool:
    """Build a Tool from a server's description, restricted to the arguments of its schema if that is usable."""
    schema = '{"type": "object", "properties": {}}'
    if tool.input_schema.get("type") == "object":
        with suppress(GrammarError, RecursionError):
            full = {"properties": {}, "additionalProperties": False} | bounded(tool.input_schema)
            schema = said if len(said := json.dumps(full)) <= MOST_SCHEMA else schema
    description = (tool.description or "")[:MOST_DESCRIPTION]
    described = _digest(tool, include={"title", "annotations", "description", "input_schema"})
    return Tool(held.server, tool.name, description, schema, held.digest, described)


def _digest(made: BaseModel, **more: Any) -> str:
    return hashlib.sha256(made.model_dump_json(**more).encode()).hexdigest()


def _text(result: Any, most: int) -> str:
    parts = []
    for part in result.content:
        inside = getattr(part, "resource", part)
        text = getattr(inside, "text", getattr(part, "uri", None))
        kind = getattr(inside, "mime_type", None) or part.type
        left_out = _("(Left out: {kind}. Only text can be read.)").format(kind=kind)
        parts.append(left_out if text is None else str(text))
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    whole = "\n\n".join(parts)
    if len(whole) <= most:
        return whole
    cut = _("(Cut here: {shown:,} of {n:,} characters.)").format(shown=most, n=len(whole))
    return f"{whole[:most]}\n\n{cut}"


# Why the user of a call has to be asked again: addresses in its arguments, and text of the chat.
_PIECE, _MOST_PIECES = 20, 6
"""Characters of a piece, and pieces of the chat that a call may hold; a run of 200 characters usually holds more."""
_AUTHORITY = re.compile(r"[/\\]{2}([^\s/\\?#\"'<>]+)")
_MAIL = re.compile(r"[\w.+-]+@([\w.-]+)")
_BARE = re.compile(
    r"(?<![\w./\\@:-])((?:[\w-]+\.)+(?:[^\W\d_]{2,63}|xn--[\w-]+)|\d{1,3}(?:\.\d{1,3}){3}|localhost|\[[\da-f:.]{2,}\])"
    r"(:\d+)?(?=([/?#])|[^\w(]|$)",
    re.IGNORECASE,
)
_ENCODED = re.compile(r"[A-Za-z\d+/_-]{80,}")


def hosts(arguments: Any) -> set[str]:
    """Return the hosts, with their ports, that arguments may name: in addresses, mail addresses and by themselves."""
    found: set[str] = set()
    for text in _readings(arguments):
        found.update(_AUTHORITY.findall(text))
        found.update(_MAIL.findall(text))
        for name, port, path in _BARE.findall(text):
            if path or port or f".{name.rpartition('.')[2]}".lower() not in KNOWN:  # else it names a file
                found.add(name + port)
    return {host.lower().rstrip(".,;:!)") for host in found}


def holds_text(arguments: Any, chat: Iterable[str]) -> bool:
    """Return whether arguments hold 200 characters or more of a chat's texts, plain or encoded (URL, base64, hex)."""
    pieces = {
        plain[at : at + _PIECE]
        for text in _readings(arguments)
        for plain in [_plain(text)]
        for at in range(0, len(plain) - _PIECE + 1, _PIECE)
    }
    if len(pieces) <= _MOST_PIECES:
        return False
    texts = [_plain(text) for text in chat]
    return sum(any(piece in text for text in texts) for piece in pieces) > _MOST_PIECES


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()


def _readings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list):
        for part in value:
            yield from _readings(part)
        return
    text = str(value)
    yield text
    read = unquote_plus(text)
    if read != text:
        yield from _readings(read)
    for code in _ENCODED.findall(text):
        with suppress(ValueError):
            yield bytes.fromhex(code).decode(errors="replace")
        code = code.translate({ord("+"): "-", ord("/"): "_"})
        for begin in range(4):  # the code may begin after other letters
            yield urlsafe_b64decode(code[begin : begin + (len(code) - begin) // 4 * 4]).decode(
                errors="replace"
            )
