"""Limit requests: their size, their JSON, how many at once, connections, and whose page they name."""

import asyncio
import json
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from contextlib import ExitStack
from typing import Any, cast
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config

from hierchat.access.files import MOST_BYTES as MOST_OF_A_FILE
from hierchat.access.hosts import is_handed_on, is_loopback
from hierchat.access.login import USER, network
from hierchat.language import _

DEEPEST = 100
"""Levels of arrays and objects within each other. Parsers, templates and grammars recurse over them."""
MOST_VALUES = 500_000
"""How many there may be in one body. Each takes some 60 bytes of memory, however short it is written."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class InvalidJson(ValueError):
    """Raised for a body that is no JSON or exceeds the limits. The message is a sentence for the client."""


def parse_json(body: bytes) -> Any:
    """Parse JSON with storable texts and finite numbers that is not nested too deep. Raises InvalidJson."""
    try:
        text = body.decode("utf-8-sig")
        _require_bounded(text)
        if any(escape[1] for escape in _ESCAPE.finditer(text)):
            raise InvalidJson("The text holds half a character (a lone surrogate), which UTF-8 cannot hold.")
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidJson("The body is no JSON.") from error


def _require_bounded(text: str) -> None:
    """Raise InvalidJson if the JSON has too many values or levels. Strings are skipped, only where that may matter."""
    opened = text.count("[") + text.count("{")
    if opened <= DEEPEST and opened + text.count(",") <= MOST_VALUES:
        return
    outside = _STRING.sub("", text)
    if outside.count("[") + outside.count("{") + outside.count(",") > MOST_VALUES:
        raise InvalidJson(f"The body holds more than {MOST_VALUES:,} values.")
    depth = 0
    for bracket in _BRACKET.finditer(outside):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEEPEST:
            raise InvalidJson(f"The body is nested more than {DEEPEST} levels deep.")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise InvalidJson(f"{number[:20]} is no number that JSON has.")
    return value


# How much one client may take of the page's server: bytes of a request, and requests that are worked on at a time.
LIMITS: tuple[tuple[str, int], ...] = (
    (r"/models/[^/]+", 1 << 42),  # it ends where the disk is full (files.py)
    (r"/transfer/in", MOST_OF_A_FILE),
    (r"/gradio_api/run/[^/]+/?", 32 << 20),  # with a file of 20 MB in base64
    (r".*", 1 << 20),
)
"""The most bytes of a request, by its path; the first that matches counts."""
_CALLS = re.compile(r"/gradio_api/run/")
_JSON = re.compile(r"/gradio_api/(?!upload|stream|process_recording)")
AT_ONCE = 8
"""Requests of one client that are worked on together. A page's configuration takes 26 ms of Python."""
_SAID = "hierchat.json"
"""Key in a request's scope of the JSON value that JsonMiddleware has checked."""
_STREAMS = re.compile(r"/gradio_api/page/|/transfer/|/models/")


def most_bytes(path: str) -> int:
    return next(most for pattern, most in LIMITS if re.fullmatch(pattern, path, re.DOTALL))


class BodySizeMiddleware:
    """Answers 413 to a request whose body is too long, as soon as that shows."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        most, taken, begun, over = most_bytes(scope["path"]), 0, False, False

        async def refuse() -> None:
            nonlocal over
            over = True
            if not begun:
                said = _("That is too much: up to {n} MiB are taken here.").format(n=most >> 20)
                await PlainTextResponse(said + "\n", 413)(scope, receive, send)

        async def counted() -> Message:
            nonlocal taken
            if not over:
                message = await receive()
                taken += len(message.get("body", b""))
                if taken <= most:
                    return message
                await refuse()
            return {"type": "http.disconnect"}

        async def unless_over(message: Message) -> None:
            nonlocal begun
            if not over:
                begun = True
                await send(message)

        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > most:
            return await refuse()
        try:
            await self._app(scope, counted, unless_over)
        except Exception:
            if not over:
                raise


class JsonMiddleware:
    """Answers 400 to JSON that no page sends, before Gradio parses it. `functions`: numbers of its handlers."""

    def __init__(self, app: ASGIApp, functions: Callable[[], Container[object]]) -> None:
        self._app = app
        self._functions = functions
        self._threads = CapacityLimiter(2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _JSON.match(scope["path"]):
            return await self._app(scope, receive, send)
        try:
            body = await Request({"type": "http"}, receive).body()
        except ClientDisconnect:
            return
        try:
            mended_body, said = await to_thread.run_sync(_checked, body, limiter=self._threads)
            if _CALLS.match(scope["path"]):
                number = said.get("fn_index") if isinstance(said, dict) else None
                if not isinstance(number, int) or number not in self._functions():
                    raise InvalidJson("The page has no such function. Load it again.")
        except InvalidJson as error:
            return await PlainTextResponse(f"{error}\n", 400)(scope, receive, send)
        scope[_SAID] = said
        await self._app(scope, _again(mended_body, receive), send)


class ConcurrencyMiddleware:
    """Lets each client have a few requests in work; its further ones wait, without holding up other clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _STREAMS.match(scope["path"]):
            return await self._app(scope, receive, send)
        client = scope.get("client") or ("",)
        turns = self._turns.setdefault(scope.get(USER) or network(client[0]), asyncio.Semaphore(AT_ONCE))
        await turns.acquire()
        with ExitStack() as turn:
            turn.callback(turns.release)

            async def until_answered(message: Message) -> None:
                turn.close()  # what is sent from here on costs the client's time alone
                await send(message)

            await self._app(scope, receive, until_answered)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body already read to the application behind."""
    told = False

    async def from_body() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return from_body


def _checked(body: bytes) -> tuple[bytes, Any]:
    """Parse a body, its lone surrogates replaced by "?": a browser sends half a character where a text was cut."""
    text = body.decode("utf-8", "replace")
    body = _ESCAPE.sub(lambda escape: "?" if escape[1] else escape[0], text).encode()
    return body, parse_json(body) if body else None


# How many connections one client may hold, and for how long without doing anything with them. uvicorn
# limits neither. A connection that sends nothing, or does not read its answer, costs a descriptor and what
# waits to be sent: where they run out, nobody else is let in.
HERE = 256
"""Connections from this machine, tunnels and proxies included. A browser opens six to one server."""
ELSEWHERE = 64
"""From one other address."""
ALL_ELSEWHERE = 512
"""From all other addresses together: a process has 1,024 descriptors by default."""
PATIENCE_SECONDS = 30.0
"""How long a connection may stand still on the client's side: without a whole request, or without reading."""
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
    b"Too many connections. Close some, then try again.\n"
)


def limit_connections(config: Config) -> None:
    """Apply the limits of connections to the running uvicorn server of this configuration."""
    held: Counter[str] = Counter()
    kind = cast(Any, config.http_protocol_class)
    config.http_protocol_class = type("Bounded", (_LimitedConnection, kind), {"held": held})
    config.ws_protocol_class = None  # nothing here speaks it, and it would take connections out of the count


class _LimitedConnection(asyncio.Protocol):
    held: Counter[str]
    """Connections by address; under "" those from elsewhere together."""
    _counted: tuple[str, ...] = ()
    _watching: asyncio.TimerHandle | None = None
    _before: tuple[object, ...] | None = None
    _received = 0
    _resumed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host = (transport.get_extra_info("peername") or ("localhost",))[0]
        here = is_loopback(str(host))
        names = ("here",) if here else (network(str(host)), "")
        limits = (HERE,) if here else (ELSEWHERE, ALL_ELSEWHERE)
        if any(self.held[name] >= most for name, most in zip(names, limits, strict=True)):
            self._transport.write(_REFUSAL)
            self._transport.close()
            return
        self._counted = names
        self.held.update(names)
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watching:
            self._watching.cancel()
        if self._counted:
            self.held -= Counter(self._counted)  # those that have none left are gone
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        self._resumed += 1
        super().resume_writing()

    def _watch(self) -> None:
        self._watching = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connection if the client has made no progress that it owes since the last look."""
        now = self._owed()
        if now is not None and now == self._before:
            self._transport.abort()
            return
        self._before = now
        self._watch()

    def _owed(self) -> tuple[object, ...] | None:
        """Return a value that changes as soon as the client does what it has to; None if nothing is expected of it."""
        of_uvicorn = cast(Any, self)
        cycle = of_uvicorn.cycle
        if self._transport.get_write_buffer_size():  # the system's own buffer is full, too
            return ("read", self._resumed)
        if cycle is None or cycle.response_complete:
            return ("ask", cycle)
        if cycle.more_body and not of_uvicorn.flow.read_paused:
            return ("send", self._received)
        return None


# Each open page belongs to the user who opened it. Gradio tells pages apart by a number that the browser
# makes up, the session hash, and asks for nothing more: whoever knows it could read another page's events,
# act in its place or close it. Here the first one to use it owns it. Of Gradio's own routes, those that the
# page needs are open, since others take a hash in ways of their own.
MOST_PAGES = 100_000
_GRADIO = "/gradio_api/"
_OPEN = re.compile(r"(?:info|app_id|user|login_check|startup-events|theme\.css|run/[^/]+|page/[^/]+)/?")
_STREAM = re.compile(r"page/([^/]+)/?")
_IN_BODY = re.compile(r"run/[^/]+/?")
_OTHERS = "This page is not yours.\n"
_CLOSED = "hierchat's page does not use this address, so it is closed.\n"
_PROXIED = (
    "A proxy handed this request on, and hierchat asks nobody here for a login. Start it with --public-url and the "
    "address that browsers open.\n"
)


class PageOwnerMiddleware:
    """Refuses requests that name another user's page, with 403. LoginMiddleware and JsonMiddleware have run before.
    `alone`: True if there is no login. Then one user sends all requests, except those that a proxy forwards."""

    def __init__(self, app: ASGIApp, *, alone: bool) -> None:
        self._app = app
        self._alone = alone
        self._owners: OrderedDict[str, str] = OrderedDict()
        """Session hash -> user."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if self._alone and scope["type"] == "http" and is_handed_on(scope):
            return await PlainTextResponse(_PROXIED, 403)(scope, receive, send)
        if not path.startswith(_GRADIO):
            return await self._app(scope, receive, send)
        route = path.removeprefix(_GRADIO)
        if not _OPEN.fullmatch(route):
            return await PlainTextResponse(_CLOSED, 404)(scope, receive, send)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        hashes = [*_STREAM.findall(route), *query.get("session_hash", [])]
        if _IN_BODY.fullmatch(route):
            said = scope.get(_SAID)
            given = said.get("session_hash") if isinstance(said, dict) else None
            hashes.append(given if isinstance(given, str) else "")
        if not all(self._is_own(hash, scope.get(USER, "")) for hash in hashes):
            return await PlainTextResponse(_OTHERS, 403)(scope, receive, send)
        await self._app(scope, receive, send)

    def _is_own(self, hash: str, user: str) -> bool:
        if not hash:  # all who send none would be one page
            return False
        owner = self._owners.setdefault(hash, user)
        self._owners.move_to_end(hash)
        while len(self._owners) > MOST_PAGES:
            self._owners.popitem(last=False)
        return owner == user
