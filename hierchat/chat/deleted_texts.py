"""Remove deleted texts from the memory of this process (slots, draft indexes, caches, memory that was freed), and from
engines that keep replies elsewhere."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import accumulate

from hierchat import logs
from hierchat.chat.spare_time import SpareTimeThread
from hierchat.engine.remote.drafted import DraftedEngine
from hierchat.freed_memory import overwrite_freed_memory
from hierchat.models.progress import ModelError
from hierchat.runtime import template
from hierchat.runtime.history_index import Histories
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import Learned
from hierchat.store import Store, StoreError

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
LOOK_SECONDS = 0.1
"""Between two looks whether it is time to overwrite."""
FORGET_SECONDS = 1.0
"""Between two looks for what engines elsewhere have to forget."""
_log = logging.getLogger(__name__)


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
        """Protects `_due`. Threads in `wait` are woken after each overwriting."""
        self._due: list[tuple[float, int, int]] = []
        """Times at which to overwrite, by time.monotonic; each with its number after a deletion, and whose that was."""
        self._rested = 0.0
        """Time before which it is not to begin again."""
        self._thread = SpareTimeThread("deletions", LOOK_SECONDS, self._look)

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
            self._due = [*(one for one in self._due if one[1] < EMPTIED), *times]
        self._thread.wake()

    def wait(self, times: int) -> None:
        """Wait until freed memory was overwritten so often after the newest deletion, or the program ends."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._thread.closed.is_set() or all(number >= times for _, number, _ in self._due)
            )

    def close(self) -> None:
        self._thread.closed.set()
        with self._lock:
            self._lock.notify_all()

    def _look(self) -> bool:
        """Overwrite freed memory if it is time; return whether it will be once more."""
        began = time.monotonic()
        with self._lock:
            due = [one for one in self._due if one[0] <= began]
        if not due or began < self._rested:
            return bool(self._due)
        if all(number for _, number, _ in due) and not self._slot.scheduler.idle_seconds:
            self._rested = began + BUSY_SECONDS
            return True
        users = {user for _, number, user in due if number < EMPTIED}
        try:
            for forget in self.screens if users else ():
                forget(users)
            for act in [*(self.caches if users else ()), *self.overwrites]:
                act()
        finally:
            with self._lock:
                self._due, now = [one for one in self._due if one not in due], time.monotonic()
                self._rested = now + REST * (now - began)
                self._lock.notify_all()
            self._thread.wake()  # an error ends it
        return bool(self._due)


def forget_deleted(store: Store, engine: DraftedEngine) -> bool:
    """Have an engine delete all replies that were deleted here since; return whether none is left there."""
    while told := store.outbox.pending(engine.place):
        by_user = defaultdict(list)
        for one in told:
            by_user[one.user].append(one.reply)
        try:
            for user, replies in by_user.items():
                engine.forget(user, replies)
        except ModelError as error:
            _log.info("a drafter could not be told what was deleted: %s", logs.kind(error))
            return False
        store.outbox.remove(told)
    return True


class Forgetting:
    """Passes deletions on once a second, while the loaded model's engine keeps replies elsewhere."""

    def __init__(self, store: Store, slot: ModelSlot) -> None:
        self._store = store
        self._slot = slot
        self._thread = SpareTimeThread("forgetting", FORGET_SECONDS, self._look)
        self._thread.wake()

    def close(self) -> None:
        """Pass on the deletions so far and stop; call it before the store is closed."""
        self._thread.closed.set()
        self._thread.wait()
        self._look()

    def _look(self) -> bool:
        engine = self._slot.model.engine if self._slot.model else None
        if isinstance(engine, DraftedEngine):
            with suppress(StoreError):  # another program holds the file: it is looked at again
                forget_deleted(self._store, engine)
        return True
