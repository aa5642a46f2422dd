"""Remove deleted texts from the memory of this process: slots, draft indexes, caches, and memory that was freed."""

import threading
from collections.abc import Callable, Collection

from hierchat.freed_memory import overwrite_freed_memory
from hierchat.runtime import template
from hierchat.runtime.history_index import Histories
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import Learned

OVERWRITE_SECONDS = 1.0
"""Seconds after a deletion when freed memory is overwritten: what drew the deleted text has ended by then."""
OVERWRITE_AGAIN = (8.0, 15.0, 30.0, 60.0)
"""Seconds between the further times: on a busy machine some threads end later, or were not reached before."""


class DeletedTexts:
    """Clears what this process still holds of texts that were deleted from the store."""

    def __init__(self, slot: ModelSlot, histories: Histories, learned: Learned) -> None:
        self._slot, self._histories, self._learned = slot, histories, learned
        self.caches: list[Callable[[], object]] = [template.end_process]
        """Functions that empty caches which may hold any text; the page adds its own."""
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

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
            self._overwrite_after(OVERWRITE_SECONDS, *OVERWRITE_AGAIN)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._overwrite_after()

    def _overwrite_after(self, *seconds: float) -> None:
        """Replace the timer by one that overwrites after these times; to be called with the lock."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds and not self._closed:
            self._timer = threading.Timer(seconds[0], self._overwrite, [seconds[1:]])
            self._timer.daemon = True
            self._timer.start()

    def _overwrite(self, again: tuple[float, ...]) -> None:
        for empty in self.caches:
            empty()
        overwrite_freed_memory()
        with self._lock:
            if threading.current_thread() is self._timer:  # no deletion since has started another
                self._overwrite_after(*again)
