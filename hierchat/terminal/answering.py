"""One reply: shown as it comes, stopped by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Event
from types import FrameType

from hierchat.chat.frames import Frame
from hierchat.store import Attachment
from hierchat.terminal.screen import Screen
from hierchat.terminal.talk import Talk


def answer(talk: Talk, text: str, files: Sequence[Attachment], screen: Screen) -> Frame:
    """The last frame; one in phase "waiting" where it was stopped before it began. Raises what keeps it from beginning,
    KeyboardInterrupt at a second Ctrl-C, BrokenPipeError where nobody reads any more."""
    stop, last = Event(), Frame("waiting")
    with _stopped_by_interrupt(stop):
        try:
            with closing(talk.ask(text, files, stop)) as frames:
                for last in frames:
                    screen.show(last)
        finally:
            screen.end()
    return last


@contextmanager
def _stopped_by_interrupt(stop: Event) -> Iterator[None]:
    def interrupted(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
