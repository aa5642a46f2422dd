"""The replies to one request while they are written: threads write, the event loop reads, and a client that hangs up
stops them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hierchat.chat.frames import Frame
from hierchat.server.errors import Refused, refused
from hierchat.server.requests import Asked

Item = tuple[int, Frame | BaseException | None]
"""The number of a reply, and its next frame, what it failed with, or None at its end."""


class Running:
    """All replies to one request. `done` is called when none of them is being written any more."""

    def __init__(self, asked: Sequence[Asked], receive: Receive, done: Callable[[], None]) -> None:
        self.asked = asked
        self._receive = receive
        self._done = done
        self._stop = threading.Event()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def frames(self) -> AsyncGenerator[tuple[int, Frame], None]:
        """Frames of all replies as they come, but those that only wait; the last of each is in phase "done".

        Raises what keeps a reply from beginning, and Refused where one failed. However the reader leaves, they stop.
        """
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._watch())
        for number in range(len(self.asked)):
            threading.Thread(target=self._write, args=(number, loop), name="endpoint", daemon=True).start()
        try:
            going = len(self.asked)
            while going:
                number, item = await self._items.get()
                if item is None:
                    going -= 1
                elif isinstance(item, BaseException):
                    raise item
                elif item.phase == "done" and item.finish in ("error", None):
                    why = item.notice or "The reply could not be written to its end."
                    # Where the database lies is for the owner's eyes.
                    raise Refused(500, why.replace(self.asked[number].database, "hierchat's database"))
                elif item.phase != "waiting":
                    yield number, item
        finally:
            self.close()

    def close(self) -> None:
        """Stop what is still being written."""
        if not self._closed:
            self._closed = True
            self._stop.set()
            if self._watching:
                self._watching.cancel()
            self._done()

    def _write(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        def tell(item: Frame | BaseException | None) -> None:
            with suppress(RuntimeError):  # the program ends
                loop.call_soon_threadsafe(self._items.put_nowait, (number, item))

        try:
            for frame in self.asked[number].frames(self._stop):
                tell(frame)
        except Exception as error:
            tell(error)
        else:
            tell(None)

    async def _watch(self) -> None:
        """Until the client hangs up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._stop.set()


class EventStream(Response):
    """Server-sent events. The first has come already, so that its status is the right one."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def failure(error: Exception) -> str:
    """What went wrong behind the first words, as an event."""
    return event(refused(error).body())


async def streamed(events: AsyncGenerator[str, None]) -> EventStream:
    """`events` as an answer. Raises what they raise before the first."""
    try:
        first = await anext(events)
    except StopAsyncIteration:  # the client hung up before anything was written
        first = ""

    async def all_of_them() -> AsyncIterator[str]:
        try:
            yield first
            async for event in events:
                yield event
        finally:
            await events.aclose()

    return EventStream(all_of_them())
