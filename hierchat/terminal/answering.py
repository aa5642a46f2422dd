"""One reply: shown as it comes, stopped by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Event
from types import FrameType

from hierchat import ending
from hierchat.chat.frames import Frame
from hierchat.store import Attachment
from hierchat.terminal.screen import Screen
from hierchat.terminal.talk import Talk


def answer(talk: Talk, text: str, files: Sequence[Attachment], screen: Screen) -> Frame:
    """The last frame; one in phase "waiting" where it was stopped before it began. Raises what keeps it from beginning,
    BrokenPipeError where nobody reads any more, and Ended where the program is to end: what came is kept, and so is the
    question."""
    stop, last = Event(), Frame("waiting")
    with stopped_by_signals(stop):
        try:
            with closing(talk.ask(text, files, stop)) as frames:
                for last in frames:
                    screen.show(last)
        finally:
            screen.end()
            if not ending.is_wanted():
                talk.take_back()
    return last


@contextmanager
def stopped_by_signals(stop: Event) -> Iterator[None]:
    """None raises before the block has ended: what is in the middle of something comes to its end."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()

    with ending.by(stop):
        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
