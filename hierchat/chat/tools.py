"""Call tools of servers that speak MCP (mcp.json names them), once their user has allowed it.

A server is started, or connected to, when a reply may call its tools, and stays until it fails or hierchat ends. It
runs as the owner of this hierchat, for whose chats alone it is. What it says is a stranger's text: bounded, shown as
it is, and read by the model as a tool's result."""

import json
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import BaseModel, Field, ValidationError, model_validator

from hierchat.config import config_dir
from hierchat.engine.scheduler import POLL_SECONDS
from hierchat.language import _, later
from hierchat.store import Store
from hierchat.store.records import CallState, Message, ToolCall

if TYPE_CHECKING:
    import httpx2
    from mcp import Client

    from hierchat.chat.completions import ReplyOptions

MOST_CALLS = 8
"""Calls in one reply."""
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
    """Connection to an MCP server that runs, or is being started."""

    entry: ServerEntry
    ready: "Future[Client]"
    ends: Future[None]


class ToolServers:
    """Holds the servers of mcp.json: which are on, their tools, calls, and what users allowed."""

    def __init__(self, store: Store) -> None:
        self._users = store.users
        self._open: dict[str, _Connection] = {}
        self._lock = threading.Lock()
        self._loops = ExitStack()
        self._asked: dict[tuple[int, int], Future[str]] = {}
        """User and message of a call that waits -> what the user will say."""
        self._allowed: set[tuple[int, Tool]] = set()
        """Chat, and a tool as it was described when it was allowed there."""

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
        """Return the tools that a reply of this user may call, by the names that the model sees, and the
        reasons why some servers cannot be used. Raises Stopped."""
        found: dict[str, Tool] = {}
        trouble: list[str] = []
        for server in sorted(self._users.tool_servers(user_id)):
            try:
                for tool in self.tools(server, stop):
                    found[tool.name if tool.name not in found else f"{tool.name}-{len(found)}"] = tool
            except ToolError as error:
                trouble.append(str(error))
        return dict(list(found.items())[:MOST_TOOLS]), trouble

    def tools(self, server: str, stop: threading.Event) -> list[Tool]:
        """Ask a server for its tools as they are now. Raises ToolError, Stopped."""
        listed = self._asking(server, stop, lambda client: client.list_tools(cache_mode="bypass"))
        return [_tool(server, one) for one in listed.tools[:MOST_TOOLS] if _NAME.fullmatch(one.name)]

    def call(
        self, tool: Tool, arguments: Mapping[str, Any], stop: threading.Event, most: int = MOST_RESULT
    ) -> tuple[CallState, str]:
        """Call a tool; return how that ended, and the text that the model reads of it: at most `most`
        characters. Raises Stopped."""
        try:
            result = self._asking(
                tool.server, stop, lambda client: client.call_tool(tool.name, dict(arguments))
            )
        except ToolError as error:
            return "failed", str(error)
        return ("failed" if result.is_error else "done"), _text(result, min(most, MOST_RESULT))

    def calling(
        self, message: Message, tool: Tool, arguments: Mapping[str, Any], options: "ReplyOptions", most: int
    ) -> Iterator[ToolCall]:
        """Yield a call's states: waiting for the user, working, ended, its result of at most `most` characters."""
        call = ToolCall(tool.server, tool.name, json.dumps(arguments, ensure_ascii=False, indent=2))
        place, everywhere = (options.user_id, message.id), (message.conversation_id, tool)
        answer: Future[str] = Future()
        try:
            if everywhere not in self._allowed:
                self._asked[place] = answer
                yield call
                said = _awaited(answer, options.stop)
                if said not in ("once", "chat"):
                    yield replace(call, state="refused", result=_REFUSED)
                    return
                if said == "chat":
                    self._allowed.add(everywhere)
            yield replace(call, state="running")
            state, result = self.call(tool, arguments, options.stop, most)
            yield replace(call, state=state, result=result)
        except Stopped:
            yield replace(call, state="stopped")
        finally:
            self._asked.pop(place, None)

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
        self, server: str, stop: threading.Event, ask: "Callable[[Client], Coroutine[Any, Any, T]]"
    ) -> T:
        """Send a request to a server; one that fails is ended. Raises ToolError, Stopped."""
        try:
            client = _awaited(self._connected(server), stop)
            return _awaited(self._loop.start_task_soon(ask, client), stop)
        except BaseException as error:
            self._end(server)
            if isinstance(error, (Stopped, ToolError)):
                raise
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            why = " ".join(str(first).split())[:MOST_REASON].rstrip(".") or type(first).__name__
            said = _("The tool server {name} cannot be used: {why}. It is named in {path}.")
            raise ToolError(said.format(name=server, why=why, path=mcp_file())) from error

    def _connected(self, server: str) -> "Future[Client]":
        """Return the connection to a server, which is opened if there is none. Raises ToolError."""
        entry = read_servers().get(server)
        if entry is None:
            raise ToolError(_(_BROKEN).format(path=mcp_file(), why=f"it names no server {server}"))
        with self._lock:
            held = self._open.get(server)
            if held is None or held.entry != entry or held.ends.done():
                self._end(server)
                ready: Future[Client] = Future()
                held = _Connection(entry, ready, self._loop.start_task_soon(_hold, entry, ready))
                self._open[server] = held
        return held.ready

    def _end(self, server: str) -> None:
        if held := self._open.pop(server, None):
            held.ends.cancel()


def _awaited(future: Future[T], stop: threading.Event) -> T:
    """Wait for a future's result, unless the user stops it. Raises Stopped, and the future's exception."""
    while not wait([future], POLL_SECONDS).done:
        if stop.is_set():
            raise Stopped
    return future.result()


async def _hold(entry: ServerEntry, ready: "Future[Client]") -> None:
    """Keep one connection to a server open until it is cancelled."""
    import httpx2
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    try:
        with open(os.devnull, "w") as nowhere:
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
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise


async def _bound(response: "httpx2.Response") -> None:
    """Bound the size of a response that is read whole, as it is unpacked; events are bounded by `mcp`."""
    from httpx2 import StreamError  # what `mcp` makes an error of the call of

    async def read() -> bytes:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MOST_BYTES:
                raise StreamError(f"it is longer than {_MOST_BYTES >> 20} MB")
        return bytes(body)

    response.aread = read  # type: ignore[method-assign]


def _tool(server: str, tool: Any) -> Tool:
    """Build a Tool from a server's description: it takes only the arguments that the schema names, or any if
    that is too long or no object's."""
    schema = json.dumps({"properties": {}, "additionalProperties": False} | tool.input_schema)
    if tool.input_schema.get("type") != "object" or len(schema) > MOST_SCHEMA:
        schema = '{"type": "object", "properties": {}}'
    return Tool(server, tool.name, (tool.description or "")[:MOST_DESCRIPTION], schema)


def _text(result: Any, most: int) -> str:
    """Return the text of a tool's result, at most `most` characters."""
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
