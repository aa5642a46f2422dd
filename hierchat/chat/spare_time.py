"""Do in spare time what makes the next reply begin sooner: read a chat before its question is asked, so that *Send*
waits for the new words only, and write what was read to the disk, so that it is not read again after a restart."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from hierchat import logs
from hierchat.config import prefix_bytes
from hierchat.engine.local import LocalEngine
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import NotFound, Store
from hierchat.store.records import Attachment

if TYPE_CHECKING:
    from hierchat.engine.cpu.prefixes import Prefixes

SECONDS = 0.5
"""Between two looks whether nobody needs the model."""
_log = logging.getLogger(__name__)


class SpareTimeThread:
    """Thread that calls `look` every few seconds, from `wake` on until it returns False: nothing is left to do. It also
    ends with an error, which is logged."""

    def __init__(self, name: str, seconds: float, look: Callable[[], bool]) -> None:
        self._name = name
        self._seconds = seconds
        self._look = look
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self.closed = threading.Event()

    def wake(self) -> None:
        """Start the thread if it is not running: there may be something to do."""
        with self._lock:
            self._again = True
            if self._thread is None and not self.closed.is_set():
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        if (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._again or self.closed.is_set():
                    self._thread = None
                    return
                self._again = False
            try:
                while not self.closed.wait(self._seconds) and self._look():
                    pass
            except Exception as error:
                _log.info("The thread of %s ended. %s", self._name, logs.error_message(error))


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
        self._thread = SpareTimeThread("prefixes", SECONDS, self._look)

    def attach(self, served: ServedModel) -> None:
        """Let the sequences of a model begin with what files hold."""
        if served is self._served:  # a file may be being written
            return
        with self._lock:
            if served is self._served:
                return
            self._served, self._prefixes = served, None
            runner: Any = served.local.runner if served.is_local else None
            if getattr(runner, "identity", "") and self._most:
                # Loads numba, which such a runner has loaded
                from hierchat.engine.cpu.prefixes import Prefixes

                self._prefixes = Prefixes(runner, self._folders.path, self._folders.may_keep, self._most)
                served.local.pool.restore = self._prefixes.restore

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


@dataclass(frozen=True, slots=True)
class NextQuestion:
    """Chat in which a question is likely to be asked next, and the files that go with it."""

    user: int
    chat: int | None
    """None: a new one."""
    project: int | None = None
    """The project in which a new chat begins; None: in none."""
    files: Sequence[Attachment] = ()


Beginning = Callable[[ServedModel, NextQuestion], list[int]]
"""Returns the tokens with which the prompt begins, whatever the question says. Raises NotFound, PromptError."""


class ReadingAhead:
    """Reads prompts ahead while no reply is written and the machine is not on battery. HIERCHAT_READ_AHEAD=0: never."""

    def __init__(self, slot: ModelSlot, beginning: Beginning, kept: PrefixKeeper) -> None:
        self._slot, self._beginning, self._kept = slot, beginning, kept
        self._next: NextQuestion | None = None
        self._stop = threading.Event()
        """Ends what is being read."""
        self._off = os.environ.get("HIERCHAT_READ_AHEAD") == "0"
        self._thread = SpareTimeThread("reading-ahead", SECONDS, self._look)

    def want(self, wanted: NextQuestion) -> None:
        """Read the beginning of this question's prompt, and no longer that of an earlier one."""
        if not self._off:
            self._next = wanted
            self._stop.set()
            self._thread.wake()

    def leave(self, user: int, *, new: bool) -> None:
        """Stop reading for a user's question. `new`: only if that belongs to no chat, and wait until it has stopped."""
        if (wanted := self._next) and wanted.user == user and not (new and wanted.chat is not None):
            self._next = None
            self._stop.set()
        if new:
            self._thread.wait()

    def close(self) -> None:
        self._next = None
        self._thread.closed.set()
        self._stop.set()
        self._thread.wait()

    def _look(self) -> bool:
        """Read as far as nobody needs the model; return whether there is more to read."""
        wanted, served = self._next, self._slot.model
        if wanted is None or (served is None and self._slot.status.phase != "loading"):
            return False
        battery = psutil.sensors_battery()
        on_battery = battery is not None and not battery.power_plugged  # or not known
        if served is None or not self._slot.scheduler.idle_seconds or on_battery:
            return True
        try:
            if isinstance(served.engine, LocalEngine) and not self._read(served.engine, served, wanted):
                return True
        except Exception:  # the next reply reads all of its prompt, and says what is wrong
            self._next = None
            raise
        if self._next is wanted:
            self._next = None
        self._kept.wake()
        return self._next is not None

    def _read(self, engine: LocalEngine, served: ServedModel, wanted: NextQuestion) -> bool:
        try:
            ids = self._beginning(served, wanted)
        except (NotFound, PromptError):  # deleted meanwhile, or too long: *Send* will say so
            return True
        self._kept.attach(served)
        with self._slot.scheduler.spare() as asked:
            if asked is None or self._slot.model is not served:
                return False
            self._stop = asked
            if self._next is not wanted:  # another was wanted, or it was closed, before it could be stopped
                return False
            return not ids or engine.read_ahead(ids, wanted.user, wanted.chat, asked)
