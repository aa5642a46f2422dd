"""Write what the model has read of chats to the disk in spare time, so that it is not read again after a restart."""

import logging
import threading
from typing import TYPE_CHECKING, Any

from hierchat import logs
from hierchat.chat.spare_time import SpareTimeThread
from hierchat.config import prefix_bytes
from hierchat.engine.local import LocalEngine
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store

if TYPE_CHECKING:
    from hierchat.engine.cpu.prefixes import Prefixes

SECONDS = 0.5
"""Between two looks whether nobody needs the model."""
_log = logging.getLogger(__name__)


class PrefixKeeper:
    """Gives the loaded model the files of earlier texts, and writes those of new ones while no reply goes on."""

    def __init__(self, store: Store, slot: ModelSlot) -> None:
        self._folders, self._slot = store.prefixes, slot
        self._folders.sweep()  # a process may have been killed between a deletion and this
        self._most = prefix_bytes()
        self._lock = threading.Lock()
        self._done = set[tuple[int, str]]()
        """Users and names of files that were written, or could not be, since the last reply."""
        self._served: ServedModel | None = None
        self._prefixes: Prefixes | None = None
        self._thread = SpareTimeThread("prefixes", SECONDS, self._look, self._failed)

    def attach(self, served: ServedModel) -> None:
        """Let the sequences of a model begin with what files hold."""
        if served is self._served:  # a file may be being written
            return
        with self._lock:
            if served is self._served:
                return
            self._served, self._prefixes = served, None
            if self._most and isinstance(served.engine, LocalEngine):
                runner: Any = served.engine.runner
                if getattr(runner, "identity", ""):
                    # Loads numba, which such a runner has loaded
                    from hierchat.engine.cpu.prefixes import Prefixes

                    may_keep = self._folders.may_keep
                    self._prefixes = Prefixes(runner, self._folders.path, may_keep, self._most)
                    served.engine.pool.restore = self._prefixes.restore

    def wake(self) -> None:
        """Write what was read since, once nobody needs the model."""
        self._done.clear()
        self._thread.wake()

    def drop(self, user_id: int) -> None:
        """Delete all that is kept of a user's texts, on the disk and in the slots; chats are read again."""
        with self._lock:
            if served := self._slot.model:
                served.wipe(user_id)
            self._folders.drop(user_id)

    def close(self) -> None:
        self._thread.closed.set()
        self._thread.wait()

    def _look(self) -> bool:
        with self._lock:
            served, prefixes = self._served, self._prefixes
            if prefixes is None or served is None or served is not self._slot.model:
                return False
            while not self._thread.closed.is_set():
                with self._slot.scheduler.spare() as wanted:
                    if wanted is None:
                        return True
                    copied = prefixes.next_copy(served.local.pool.texts(), self._done)
                if copied is None:
                    return False
                self._done.add((copied.user, copied.name))
                prefixes.write(copied)
        return False

    def _failed(self, error: Exception) -> None:
        # A full disk or a folder that cannot be written: after the next reply it is tried again.
        _log.info("What the model has read was not kept on the disk. %s", logs.error_message(error))
