"""The queue before an engine: first come, first served.

One reply at a time holds the turn; whoever waits can see how many come before, and leave. It is polled, so that a
reader who left, or pressed Stop, is never waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

POLL_SECONDS = 0.1
MOST_WAITING = 32


class QueueFull(RuntimeError):
    """Too many wait already. The message is for the page."""


class Ticket:
    """A place in the queue."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def ahead(self) -> int:
        """How many come before; 0: it is this one's turn."""
        return self._scheduler.ahead(self)

    def wait(self, seconds: float = POLL_SECONDS) -> bool:
        """Until its turn, at most so long; whether it is its turn."""
        return self._scheduler.wait(self, seconds)

    def leave(self) -> None:
        """Give the turn, or the place, to the next."""
        self._scheduler.leave(self)


class Scheduler:
    """Who uses the engine now, and who comes next. Loading another model takes a turn, too."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._tickets: deque[Ticket] = deque()
        self._changed = threading.Condition()

    def join(self) -> Ticket:
        """A place at the end. Raises QueueFull."""
        with self._changed:
            if len(self._tickets) >= self._most:
                raise QueueFull("Too many replies are waiting. Please try again in a moment.")
            ticket = Ticket(self)
            self._tickets.append(ticket)
            return ticket

    def ahead(self, ticket: Ticket) -> int:
        with self._changed:
            return self._tickets.index(ticket)

    def wait(self, ticket: Ticket, seconds: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._tickets[0] is ticket, seconds)

    def leave(self, ticket: Ticket) -> None:
        with self._changed:
            self._tickets.remove(ticket)
            self._changed.notify_all()

    @contextmanager
    def turn(self, seconds: float | None = None) -> Iterator[bool]:
        """Wait for a turn and hold it; yields False where none came in time."""
        ticket = self.join()
        try:
            yield self.wait(ticket, seconds)
        finally:
            self.leave(ticket)
