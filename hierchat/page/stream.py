"""Send what a page shows to its browser, as one stream of server-sent events. Nothing else writes HTML there."""

import asyncio
import json
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count

from anyio import CapacityLimiter, move_on_after, to_thread
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from hierchat.access.login import USER
from hierchat.page.guard import PageEvents
from hierchat.page.page_sessions import Session
from hierchat.store import LOCAL_USER

LEFT_SECONDS = 5.0
"""A page whose stream was not opened again so long after its end is closed: proxies end one for a moment."""
RESTS_SECONDS = 12 * 3600.0
"""The same for a page that let its stream go because nobody sees it."""
AGAIN_MS = 1_000
"""How long a browser waits before it opens a stream again."""
PING_SECONDS = 15
"""Interval of pings in an idle stream, because proxies cut silent connections."""
LOOK_SECONDS = 1.0
"""Interval for changes that wake no stream, such as another loaded model."""
_DRAWING = 4
"""Threads that draw for all streams: handlers that wait for the store may hold all of Gradio's."""


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, object]:
    """Return the parts that differ from those before. Of one that was there, only what changed in it."""
    return {
        name: part if name not in before else _difference(before[name], part)
        for name, part in after.items()
        if before.get(name) != part
    }


def _difference(before: str, after: str) -> tuple[int, int, str]:
    """Return how much of a text stays at its beginning and end, in JavaScript's characters, and what comes between."""
    most = min(len(before), len(after))
    begin = bisect_left(range(most), True, key=lambda n: before[: n + 1] != after[: n + 1])
    old, new = len(before), len(after)
    end = bisect_left(range(most - begin), True, key=lambda n: before[old - n - 1 :] != after[new - n - 1 :])
    return _units(after[:begin]), _units(after[new - end :]), after[begin : new - end]


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class PageStreams:
    """Serves the streams of all open pages, and closes those pages whose stream has ended."""

    def __init__(self, page: PageEvents) -> None:
        self._page = page
        self._threads = CapacityLimiter(_DRAWING)

    async def answer(self, request: Request) -> Response:
        """Open the stream of a page; 404 for one that is unknown, or another user's."""
        session = self._page.sessions.find(request.path_params["hash"])
        if session is None or session.name != (request.scope.get(USER) or LOCAL_USER):
            return PlainTextResponse("There is no such page.\n", 404)
        return EventSourceResponse(self._events(session), ping=PING_SECONDS)

    async def _events(self, session: Session) -> AsyncIterator[ServerSentEvent]:
        """Yield the whole screen, and then what changes in it, for as long as the page is open."""
        loop, moved = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(moved.set)

        session.page.streams.add(wake)
        sent: Mapping[str, str] = {}
        try:
            for number in count(1):
                moved.clear()
                await to_thread.run_sync(self._page.catch_up, session, limiter=self._threads)
                if session.gone:
                    return
                parts = session.page.parts
                if news := changes(sent, parts):
                    yield ServerSentEvent(json.dumps(news), id=str(number), retry=AGAIN_MS)
                sent = parts
                waiting = True
                while waiting:
                    with move_on_after(LOOK_SECONDS):
                        await moved.wait()
                    waiting = not moved.is_set() and not self._page.behind(session)
        finally:
            session.page.streams.discard(wake)
            loop.call_later(LEFT_SECONDS, loop.run_in_executor, None, self._close, session, loop)

    def _close(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        if session.page.streams:
            return
        if session.rests:
            session.rests = False
            later = partial(loop.run_in_executor, None, self._close, session, loop)
            loop.call_soon_threadsafe(loop.call_later, RESTS_SECONDS, later)
        else:
            self._page.close(session)
