"""What each open page is doing, and the line in which replies wait for the engine."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from hierchat.chat.frames import Arm, Frame

MAX_WAITING = 16


@dataclass(slots=True)
class Session:
    """One open page. Lives in this process only."""

    conversation: int | None = None
    """The conversation on the screen; a reply may go on in another one."""
    stop: threading.Event | None = None
    """Stops the reply in progress; None while there is none."""
    marked: set[int] = field(default_factory=set)
    """Replies whose tokens are shown by source."""
    context: dict[int, str] = field(default_factory=dict)
    """Conversation -> its last line about the context window."""
    recording: list[tuple[Arm, float, Frame]] = field(default_factory=list)
    """Frames of the last comparison with the seconds since it began."""
    verdict: str = ""


class Sessions:
    """Sessions by Gradio's session hash."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def of(self, key: str | None) -> Session:
        """The session of this page, made on first sight."""
        with self._lock:
            return self._sessions.setdefault(key or "", Session())

    def close(self, key: str | None) -> None:
        """The page is gone: stop what it was waiting for and forget it."""
        with self._lock:
            session = self._sessions.pop(key or "", None)
        if session is not None and session.stop is not None:
            session.stop.set()


class Line:
    """First come, first served, one at a time. Polled, so that a waiting reply can show its place and be stopped."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._tickets: deque[object] = deque()
        self._lock = threading.Lock()

    def join(self) -> object | None:
        """A ticket, or None when the line is full."""
        with self._lock:
            if len(self._tickets) >= self._most:
                return None
            ticket = object()
            self._tickets.append(ticket)
            return ticket

    def ahead(self, ticket: object) -> int:
        """How many come before this ticket; 0 means that it is its turn."""
        with self._lock:
            return self._tickets.index(ticket)

    def leave(self, ticket: object) -> None:
        """Give the turn, or the place in the line, to the next."""
        with self._lock:
            self._tickets.remove(ticket)
