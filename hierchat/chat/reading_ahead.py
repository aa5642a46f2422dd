"""Read a chat in spare time before its next question is asked, so that *Send* waits for the new words only."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hierchat import logs
from hierchat.chat.prefix_keeper import PrefixKeeper
from hierchat.chat.spare_time import SpareTimeThread, on_battery
from hierchat.engine.local import LocalEngine
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.runtime.template import PromptError
from hierchat.store import NotFound
from hierchat.store.records import Attachment

SECONDS = 0.5
"""Between two looks whether nobody needs the model."""
_log = logging.getLogger(__name__)


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
        self._thread = SpareTimeThread("reading-ahead", SECONDS, self._look, self._failed)

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
        if served is None or not self._slot.scheduler.idle_seconds or on_battery():
            return True
        if isinstance(served.engine, LocalEngine) and not self._read(served.engine, served, wanted):
            return True
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

    def _failed(self, error: Exception) -> None:
        self._next = None  # the next reply reads all of its prompt, and says what is wrong
        _log.info("Nothing was read ahead. %s", logs.error_message(error))
