"""Remove deleted texts from the memory of this process: slots, draft indexes, caches, and memory that was freed."""

import threading
import time
from collections.abc import Callable, Collection
from itertools import accumulate

from hierchat.freed_memory import overwrite_freed_memory
from hierchat.runtime import template
from hierchat.runtime.history_index import Histories
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import Learned

OVERWRITE_SECONDS = 1.0
"""Seconds after a deletion when freed memory is overwritten: what drew the deleted text has ended by then."""
OVERWRITE_AGAIN = (8.0, 15.0, 30.0, 60.0)
"""Seconds between the further times: on a busy machine some threads end later, or were not reached before."""
EMPTIED = 2
"""How many of these times caches are emptied: later nothing of the deleted text is drawn any more."""
REST = 4.0
"""Pause after each overwriting, as a multiple of its duration."""
BUSY_SECONDS = 2.0
"""Seconds after which a time that is not the first is tried again, if a reply is being written: it needs the
processor."""


class DeletedTexts:
    """Clears what this process still holds of texts that were deleted from the store."""

    def __init__(self, slot: ModelSlot, histories: Histories, learned: Learned) -> None:
        self._slot, self._histories, self._learned = slot, histories, learned
        self.caches: list[Callable[[], object]] = [template.renew_process]
        """Functions that empty caches which may hold any text; the page adds its own."""
        self.screens: list[Callable[[Collection[int]], object]] = []
        """Functions of the page that drop what is drawn for these users, and all caches of drawn texts."""
        self.overwrites: list[Callable[[], object]] = [overwrite_freed_memory]
        """Functions that overwrite freed memory; the page adds its own."""
        self._lock = threading.Condition()
        """Protects the fields below. Threads in `wait` are woken after each overwriting."""
        self._due: list[tuple[float, int, int]] = []
        """Times at which to overwrite, by time.monotonic; each with its number after a deletion, and whose that was."""
        self._rested = 0.0
        """Time before which it is not to begin again."""
        self._timer: threading.Timer | None = None
        self._overwriting = self._closed = False

    def clear(self, user_id: int, chats: Collection[int | None] | None = None) -> None:
        """Clear the texts of these chats of a user, or of all, except replies in progress; overwrite freed memory."""
        if served := self._slot.model:
            served.wipe(user_id, chats)
        self._learned.forget(user_id)
        if chats is None:
            self._histories.forget(user_id)
        else:
            self._histories.follow(user_id)
        with self._lock:
            after = accumulate((OVERWRITE_SECONDS, *OVERWRITE_AGAIN))
            times = [(time.monotonic() + seconds, number, user_id) for number, seconds in enumerate(after)]
            # The later times of earlier deletions are among these
            self._due = sorted([*(one for one in self._due if one[1] < EMPTIED), *times])
            self._set_timer()

    def wait(self, times: int) -> None:
        """Wait until freed memory was overwritten so often after the newest deletion, or the program ends."""
        with self._lock:
            self._lock.wait_for(
                lambda: (
                    self._closed
                    or not (self._overwriting or any(number < times for _, number, _ in self._due))
                )
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._set_timer()
            self._lock.notify_all()

    def _set_timer(self) -> None:
        """Wait for the next time, unless it overwrites now; to be called with the lock."""
        if self._overwriting:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._due and not self._closed:
            seconds = max(self._due[0][0], self._rested) - time.monotonic()
            self._timer = threading.Timer(max(seconds, 0.0), self._overwrite)
            self._timer.daemon = True
            self._timer.start()

    def _overwrite(self) -> None:
        with self._lock:
            if self._closed or threading.current_thread() is not self._timer:
                return
            began = time.monotonic()
            due = [one for one in self._due if one[0] <= began]
            first = min((number for _, number, _ in due), default=0)
            users = {user for _, number, user in due if number < EMPTIED}
            if first and not self._slot.scheduler.idle_seconds:
                self._rested = began + BUSY_SECONDS
                self._set_timer()
                return
            self._due = [one for one in self._due if one[0] > began]
            self._overwriting = True
        try:
            for forget in self.screens if users else ():
                forget(users)
            for act in [*(self.caches if users else ()), *self.overwrites]:
                act()
        finally:
            with self._lock:
                self._overwriting, now = False, time.monotonic()
                self._rested = now + REST * (now - began)
                self._set_timer()
                self._lock.notify_all()
