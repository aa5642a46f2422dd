"""One reply from the click to its end, as views: waiting in line, waiting for the model, streaming, done.

Yields plain values; page.py says which component shows what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from hierchat.logs import said as said
from hierchat.ui import status
from hierchat.ui.sessions import Line

if TYPE_CHECKING:
    from hierchat.runtime.host import ModelHost

T = TypeVar("T")
_POLL_SECONDS = 0.1


class Refused(Exception):
    """A reply that cannot begin; the message is for the page."""


class Stopped(Exception):
    """The user pressed Stop before the reply began."""


def run(
    stop: threading.Event,
    line: Line,
    host: ModelHost,
    start: Callable[[threading.Event], Generator[T, None, None]],
) -> Generator[str | T, None, None]:
    """Waits, as HTML sentences, then what `start` yields. Raises Refused, Stopped, or what `start` raises.

    The first value comes before anything slow: Gradio can cancel a generator only after it has yielded once.
    """
    ticket = line.join()
    if ticket is None:
        raise Refused("Too many replies are waiting. Please try again in a moment.")
    try:
        yield status.waiting("Waiting for the model…")
        yield from _wait(lambda: line.ahead(ticket), lambda n: status.waiting(status.place_sentence(n)), stop)
        yield from _wait(lambda: _unready(host), status.host_line, stop)
        with closing(start(stop)) as frames:
            yield from frames
    finally:
        stop.set()
        line.leave(ticket)


def _unready(host: ModelHost) -> Any:
    current = host.status
    if host.answers:
        return None
    if current.phase == "failed":
        raise Refused(status.host_sentence(current))
    if current.phase == "none":
        raise Refused("No model is loaded. Choose one above.")
    return current


def _wait(reason: Callable[[], Any], words: Callable[[Any], str], stop: threading.Event) -> Iterator[str]:
    """A sentence for each new reason to wait, until there is none. Raises Stopped."""
    last = None
    while why := reason():
        if stop.is_set():
            raise Stopped
        if why != last:
            yield words(why)
            last = why
        else:
            yield ""  # lets a disconnect end the wait
        time.sleep(_POLL_SECONDS)
    if stop.is_set():
        raise Stopped
