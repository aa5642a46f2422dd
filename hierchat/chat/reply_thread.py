"""Runs a reply in a thread of its own, ahead of its reader.

So decoding does not wait for the page, and all of a reply's forwards come from one thread. torch keeps a team of helper
threads for each thread that calls it, and two teams would share the same cores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import TypeVar

from hierchat.language import here

T = TypeVar("T")
_running: dict[threading.Thread, threading.Event] = {}
"""The threads that write replies, and what stops each."""


class _End:
    """The last item: how the reply's thread ended."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def in_reply_thread(
    make: Callable[[], Generator[T, None, None]], stop: threading.Event
) -> Generator[T, None, None]:
    """Yield what `make()` yields; where the reader is slow, only the latest. A reader that leaves sets `stop`, and the
    thread has ended when this generator has. Exceptions pass through."""
    items: SimpleQueue[T | _End] = SimpleQueue()

    def work() -> None:
        try:
            with closing(make()) as values:
                for value in values:
                    items.put(value)
        except BaseException as error:  # raised again in the reader's thread
            items.put(_End(error))
        else:
            items.put(_End())

    thread = threading.Thread(target=here(work), name="reply", daemon=True)
    _running[thread] = stop
    thread.start()
    ended: _End | None = None
    try:
        while ended is None:
            latest: T | None = None
            item = items.get()
            while not isinstance(item, _End):
                latest = item
                if items.empty():
                    break
                item = items.get()
            if isinstance(item, _End):
                ended = item
            if latest is not None:
                yield latest
        if ended.error is not None:
            raise ended.error
    finally:
        if ended is None:
            stop.set()
        thread.join()
        _running.pop(thread, None)


@contextmanager
def none_outlives(seconds: float) -> Iterator[None]:
    """Stop every reply when the block has ended, and wait for them up to so many seconds: a thread that computes in C++
    while the interpreter ends has the process aborted."""
    try:
        yield
    finally:
        left = dict(_running)
        for stop in left.values():
            stop.set()
        until = time.monotonic() + seconds
        for thread in left:
            thread.join(max(0.0, until - time.monotonic()))
