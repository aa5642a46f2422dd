"""A slow and uneven way between the page and its server: every event and every answer is late, each by another time."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_SECONDS = 0.4
"""Delay of an answer, or of a piece of a stream; most are shorter."""
ARRIVES_SECONDS = 0.1
"""Most delay of an event on its way to the server."""
LONG_SECONDS = 1.2
"""The same for one in thirty."""
EVENT, STREAM = "/gradio_api/run/", "/gradio_api/page/"


class Late:
    """Middleware in front of the page (`before` of `driving.serving`). Events and their answers overtake each other;
    pieces of a stream keep their order, and the server does not notice that they are late."""

    def __init__(self, seed: int) -> None:
        self.calm = False
        """Whether nothing is late for now."""
        self._numbers = random.Random(seed)
        self._underway = 0
        self._streams: set[_Stream] = set()

    def before(self, app: ASGIApp, _is_local: Callable[[Scope], bool]) -> ASGIApp:
        """Stand in front of the page's app."""

        async def answering(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope.get("path", "")
            if EVENT in path:
                await self._event(app, scope, receive, send)
            elif STREAM in path:
                await self._stream(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return answering

    @property
    def underway(self) -> bool:
        """Whether an event is not answered yet, or a piece of a stream not sent."""
        return bool(self._underway) or any(stream.unsent for stream in list(self._streams))

    def _seconds(self) -> float:
        if self.calm:
            return 0.0
        if self._numbers.random() < 1 / 30:
            return LONG_SECONDS
        return float(MOST_SECONDS * self._numbers.random() ** 2)

    async def _event(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def late(message: Message) -> None:
            if message["type"] == "http.response.start":
                await asyncio.sleep(self._seconds())
            await send(message)

        self._underway += 1
        try:
            await asyncio.sleep(0.0 if self.calm else self._numbers.uniform(0, ARRIVES_SECONDS))
            await app(scope, receive, late)
        finally:
            self._underway -= 1

    async def _stream(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        stream = _Stream(send, self._seconds)
        passing = asyncio.ensure_future(stream.pass_on())
        answering = asyncio.ensure_future(app(scope, receive, stream.keep))
        self._streams.add(stream)
        try:
            await asyncio.wait({passing, answering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(stream)
            for one in (passing, answering):
                one.cancel()
                with suppress(asyncio.CancelledError):
                    await one


class _Stream:
    """Pieces of one stream on their way, in their order."""

    def __init__(self, send: Send, seconds: Callable[[], float]) -> None:
        self.unsent = 0
        self._send = send
        self._seconds = seconds
        self._pieces: asyncio.Queue[Message] = asyncio.Queue()

    async def keep(self, message: Message) -> None:
        """Take a piece, which goes on later."""
        self.unsent += 1
        self._pieces.put_nowait(message)

    async def pass_on(self) -> None:
        """Send the pieces, each when its time has come."""
        while True:
            piece = await self._pieces.get()
            await asyncio.sleep(self._seconds())
            await self._send(piece)
            self.unsent -= 1
