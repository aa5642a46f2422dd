"""Queue requests before an engine: first come, first served.

Up to `places` replies hold the engine together; what needs it for itself waits until they have ended, and holds off
those behind it. A ticket that waits tells how many replies come before. It can step aside, or leave. Each wait is
short, so that a caller can look between two of them whether its reply is still wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

POLL_SECONDS = 0.1
MOST_WAITING = 16


class QueueFull(Exception):
    """Too many requests wait already. The message is for the user."""


class Ticket:
    """A place in the queue; later the engine, or a share of it."""

    def __init__(self, scheduler: Scheduler, *, first: bool, shares: bool) -> None:
        self._scheduler = scheduler
        self.first = first
        self.shares = shares

    @property
    def ahead(self) -> int:
        """How many replies must end before."""
        return self._scheduler.ahead(self)

    def take(self, seconds: float | None = POLL_SECONDS) -> bool:
        """Wait for the engine, at most so long (None: for ever). Returns whether it is this ticket's now."""
        return self._scheduler.take(self, seconds)

    def step_aside(self) -> None:
        """Give the engine back, and be the next behind tickets that go first."""
        self._scheduler.step_aside(self)

    def leave(self) -> None:
        """Give back the engine, or the place in the queue."""
        self._scheduler.leave(self)


class Scheduler:
    """Decides who uses the engine now, and who comes next. Loading another model goes ahead of replies that wait."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.places = 1
        """Replies that the engine writes at once; whoever brings another engine sets it."""
        self._most = most
        self._holders: list[Ticket] = []
        self._waiting: list[Ticket] = []
        self._changed = threading.Condition()
        self._wanted = threading.Event()
        self._free_since = time.monotonic()

    def join(self, *, first: bool = False, shares: bool = False) -> Ticket:
        """Take a place at the end, or ahead of all replies; `shares`: others may hold the engine, too. Raises
        QueueFull."""
        ticket = Ticket(self, first=first, shares=shares)
        with self._changed:
            self._wanted.set()
            if not first and len(self._waiting) >= self._most:
                raise QueueFull("Too many replies are waiting. Please try again in a moment.")
            self._waiting.insert(self._firsts() if first else len(self._waiting), ticket)
            return ticket

    def ahead(self, ticket: Ticket) -> int:
        with self._changed:
            if ticket in self._holders:
                return 0
            before = self._waiting[: self._waiting.index(ticket)]
            replies = sum(not one.first for one in self._holders)
            if ticket.shares:  # all but one of those that hold it may go on
                replies = min(replies, 1) if before or not self._has_room(ticket) else 0
            return replies + sum(not one.first for one in before)

    def take(self, ticket: Ticket, seconds: float | None) -> bool:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._waiting[0] is ticket and self._has_room(ticket), seconds
            ):
                return False
            self._holders.append(self._waiting.pop(0))
            self._changed.notify_all()  # the next one may find room, too
            return True

    def step_aside(self, ticket: Ticket) -> None:
        with self._changed:
            self._holders.remove(ticket)
            self._waiting.insert(self._firsts(), ticket)
            self._changed.notify_all()

    def leave(self, ticket: Ticket) -> None:
        with self._changed:
            (self._holders if ticket in self._holders else self._waiting).remove(ticket)
            self._free_since = time.monotonic()
            self._changed.notify_all()

    @contextmanager
    def turn(
        self, seconds: float | None = None, *, first: bool = False, shares: bool = False
    ) -> Iterator[bool]:
        """Wait for the engine and hold it; yields False where it did not come in time. Raises QueueFull."""
        ticket = self.join(first=first, shares=shares)
        try:
            yield ticket.take(seconds)
        finally:
            ticket.leave()

    @property
    def idle_seconds(self) -> float:
        """How long nobody has held the engine or waited for it."""
        with self._changed:
            return 0.0 if self._holders or self._waiting else time.monotonic() - self._free_since

    @contextmanager
    def spare(self) -> Iterator[threading.Event | None]:
        """Hold the engine as long as nobody else wants it: yields what is set once somebody does, and None where
        somebody does already."""
        ticket = Ticket(self, first=True, shares=False)  # no reply: who waits for it is not told so
        with self._changed:
            free = not self._holders and not self._waiting
            if free:
                self._holders, self._wanted = [ticket], threading.Event()
        try:
            yield self._wanted if free else None
        finally:
            if free:
                self.leave(ticket)

    def _has_room(self, ticket: Ticket) -> bool:
        if not self._holders:
            return True
        shared = ticket.shares and all(one.shares for one in self._holders)
        return shared and len(self._holders) < self.places

    def _firsts(self) -> int:
        return sum(ticket.first for ticket in self._waiting)
