"""End the program in order when the system asks for it: the first signal closes all parts, the second ends at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, *([signal.SIGHUP] if sys.platform != "win32" else []))


class Ended(SystemExit):
    """A signal ended the program; the code is what a shell gives for it."""


_received = 0
_stops: list[threading.Event] = []


@contextmanager
def in_order() -> Iterator[None]:
    """Raise Ended in the main thread for signals that end the program; one that is ignored, as by nohup, stays so."""
    global _received
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received = 0
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on Ctrl-C and on signals that end. Raises Ended after the block if such a signal came."""
    before = signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        signal.signal(signal.SIGINT, before)
    if _received:
        raise Ended(128 + _received)


def _end(number: int, frame: FrameType | None) -> None:
    global _received
    if _received:
        os._exit(128 + number)
    _received = number
    if not _stops:
        raise Ended(128 + number)
    for stop in _stops:
        stop.set()
