"""How much one client may take of the page's server: bytes of a request, and requests that are worked on at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container
from typing import Any
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.accounts.bodies import Unsound, mended, parsed
from hierchat.language import _
from hierchat.ui.doors.files import MOST_BYTES as MOST_OF_A_FILE
from hierchat.ui.doors.login import USER
from hierchat.ui.doors.throttle import network

LIMITS: tuple[tuple[str, int], ...] = (
    (r"/models/[^/]+", 1 << 42),  # it ends where the disk is full (dropped.py)
    (r"/transfer/in", MOST_OF_A_FILE),
    (r"/gradio_api/(?:queue/join|run/[^/]+)/?", 32 << 20),  # with a file of 20 MB in base64
    (r".*", 1 << 20),
)
"""The most bytes of a request, by its path; the first that matches counts."""
_CALLS = re.compile(r"/gradio_api/(?:queue/join|run/)")
_JSON = re.compile(r"/gradio_api/(?!upload|stream|process_recording)")
AT_ONCE = 4
"""Requests of one client that are worked on beside each other. A page's configuration takes 26 ms of Python: asked for
sixty times at once, it would keep everybody else waiting."""
_STREAMS = re.compile(r"/gradio_api/(?:queue/data|heartbeat/)|/transfer/|/models/")


def most_bytes(path: str) -> int:
    """The most that a request to this path may bring."""
    return next(most for pattern, most in LIMITS if re.fullmatch(pattern, path, re.DOTALL))


class Bodies:
    """Answers 413 to a request that is too long, as soon as that shows."""

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


class Sound:
    """Answers 400 to JSON that no page sends, before Gradio parses it. `functions`: their numbers."""

    def __init__(self, app: ASGIApp, functions: Callable[[], Container[object]]) -> None:
        self._app = app
        self._functions = functions
        self._threads = CapacityLimiter(2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _JSON.match(scope["path"]):
            return await self._app(scope, receive, send)
        body = await whole(receive)
        if body is None:
            return
        try:
            mended_body, said = await to_thread.run_sync(_checked, body, limiter=self._threads)
            if _CALLS.match(scope["path"]) and not self._calls(said):
                raise Unsound("The page has no such function. Load it again.")
        except Unsound as error:
            return await PlainTextResponse(f"{error}\n", 400)(scope, receive, send)
        await self._app(scope, again(mended_body, receive), send)

    def _calls(self, said: Any) -> bool:
        number = said.get("fn_index") if isinstance(said, dict) else None
        return isinstance(number, int) and number in self._functions()


class Turns:
    """Lets each client have some requests in work; more of them wait for its own. Others do not wait with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _STREAMS.match(scope["path"]):
            return await self._app(scope, receive, send)
        client = scope.get("client") or ("",)
        turns = self._turns.setdefault(scope.get(USER) or network(client[0]), asyncio.Semaphore(AT_ONCE))
        ended = _once(turns.release)

        async def until_answered(message: Message) -> None:
            ended()  # what is sent from here on costs the client's time alone
            await send(message)

        await turns.acquire()
        try:
            await self._app(scope, receive, until_answered)
        finally:
            ended()


async def whole(receive: Receive) -> bytes | None:
    """A request's body; None where it broke off."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def again(body: bytes, receive: Receive) -> Receive:
    """The same request once more for who reads it next."""
    told = False

    async def from_body() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return from_body


def _checked(body: bytes) -> tuple[bytes, Any]:
    body = mended(body)
    return body, parsed(body) if body else None


def _once(what: Callable[[], None]) -> Callable[[], None]:
    done = False

    def first() -> None:
        nonlocal done
        if not done:
            done = True
            what()

    return first
