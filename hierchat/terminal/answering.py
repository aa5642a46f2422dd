"""One reply: shown as it comes, stopped by Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Event
from types import FrameType

from hierchat.chat.frames import Frame
from hierchat.store import Attachment
from hierchat.terminal.screen import Screen
from hierchat.terminal.talk import Talk

_ENDING = [signal.SIGTERM, *([signal.SIGHUP] if sys.platform != "win32" else [])]
"""Another program ends this one, or the terminal's window was closed."""


def answer(talk: Talk, text: str, files: Sequence[Attachment], screen: Screen) -> Frame:
    """The last frame; one in phase "waiting" where it was stopped before it began. Raises what keeps it from beginning,
    BrokenPipeError where nobody reads any more, and SystemExit where the program is to end: what came is kept."""
    stop, last = Event(), Frame("waiting")
    with stopped_by_signals(stop):
        try:
            with closing(talk.ask(text, files, stop)) as frames:
                for last in frames:
                    screen.show(last)
        finally:
            screen.end()
    return last


@contextmanager
def stopped_by_signals(stop: Event) -> Iterator[None]:
    """None raises: what is in the middle of something comes to its end."""
    ended: list[int] = []

    def received(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            ended.append(number)
        stop.set()

    before = {number: signal.signal(number, received) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended:
        sys.exit(128 + ended[0])
