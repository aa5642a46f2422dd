"""Queue requests before an engine: first come, first served. Up to `places` replies hold the engine together;
exclusive work waits for their end, and holds off those after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

POLL_SECONDS = 0.1
MOST_WAITING = 16


class QueueFull(Exception):
    """Too many requests wait for the engine. The message is for the user."""


class Scheduler:
    """Decide who uses the engine now, and who comes next. Loading another model goes ahead of replies that wait."""

    def __init__(self) -> None:
        self.places = 1
        """Replies that the engine writes at once; whoever brings another engine sets it."""
        self.holders: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.changed = threading.Condition()
        self._wanted = threading.Event()
        self.free_since = time.monotonic()

    def join(self, *, first: bool = False, shares: bool = False) -> Ticket:
        """Join the end of the queue, or its front; `shares`: others may hold the engine, too. Raises QueueFull."""
        ticket = Ticket(self, first=first, shares=shares)
        with self.changed:
            self._wanted.set()
            if not first and len(self.waiting) >= MOST_WAITING:
                raise QueueFull("Too many replies are waiting. Please try again in a moment.")
            self.waiting.insert(self.firsts() if first else len(self.waiting), ticket)
            return ticket

    @contextmanager
    def turn(self, seconds: float | None = None, *, first: bool = False) -> Iterator[bool]:
        """Wait for the engine and hold it; yields False where it did not come in time. Raises QueueFull."""
        ticket = self.join(first=first)
        try:
            yield ticket.take(seconds)
        finally:
            ticket.leave()

    @property
    def idle_seconds(self) -> float:
        """Return the seconds for which nobody has held the engine or waited for it."""
        with self.changed:
            return 0.0 if self.holders or self.waiting else time.monotonic() - self.free_since

    @contextmanager
    def spare(self) -> Iterator[threading.Event | None]:
        """Hold the engine while nobody else wants it: yield an event that is then set; None if already wanted."""
        ticket = Ticket(self, first=True, shares=False)  # no reply: who waits for it is not told so
        with self.changed:
            free = not self.holders and not self.waiting
            if free:
                self.holders, self._wanted = [ticket], threading.Event()
        try:
            yield self._wanted if free else None
        finally:
            if free:
                ticket.leave()

    def has_room(self, ticket: Ticket) -> bool:
        """Tell whether a ticket may hold the engine beside those that do; call it with `changed` held."""
        if not self.holders:
            return True
        shared = ticket.shares and all(one.shares for one in self.holders)
        return shared and len(self.holders) < self.places

    def firsts(self) -> int:
        """Count the tickets that wait ahead of all replies; call it with `changed` held."""
        return sum(ticket.first for ticket in self.waiting)


class Ticket:
    """Hold a place in the queue; later the engine, or a share of it."""

    def __init__(self, queue: Scheduler, *, first: bool, shares: bool) -> None:
        self._queue = queue
        self.first = first
        self.shares = shares

    @property
    def ahead(self) -> int:
        """Return how many replies must end before."""
        queue = self._queue
        with queue.changed:
            if self in queue.holders:
                return 0
            before = queue.waiting[: queue.waiting.index(self)]
            replies = sum(not one.first for one in queue.holders)
            if self.shares:  # all but one of those that hold it may go on
                replies = min(replies, 1) if before or not queue.has_room(self) else 0
            return replies + sum(not one.first for one in before)

    def take(self, seconds: float | None = POLL_SECONDS) -> bool:
        """Wait for the engine, at most `seconds` (None: for ever). Return whether it is this ticket's now."""
        queue = self._queue
        with queue.changed:
            if not queue.changed.wait_for(lambda: queue.waiting[0] is self and queue.has_room(self), seconds):
                return False
            queue.holders.append(queue.waiting.pop(0))
            queue.changed.notify_all()  # the next one may find room, too
            return True

    def step_aside(self) -> None:
        """Give the engine back, and wait for it again, next behind tickets that go first."""
        queue = self._queue
        with queue.changed:
            queue.holders.remove(self)
            queue.waiting.insert(queue.firsts(), self)
            queue.changed.notify_all()

    def leave(self) -> None:
        """Give back the engine, or the place in the queue."""
        queue = self._queue
        with queue.changed:
            (queue.holders if self in queue.holders else queue.waiting).remove(self)
            queue.free_since = time.monotonic()
            queue.changed.notify_all()
