"""Learning while idle: when nobody needs the machine, the model writes for the users who allow it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from hierchat import logs
from hierchat.chat.idle_writer import Writer
from hierchat.chat.prompts import shipped_scripts, waiting_scripts
from hierchat.language import later
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.served_model import ServedModel
from hierchat.store import IdleSettings, Store

# Whether the machine has time and power to spare.


OTHERS = 0.25
"""Share of all cores; where other programs use more, one of them needs the processor."""
SECONDS = 1.0
"""Between two looks; shorter ones tell too little."""
ON_BATTERY = later("The machine runs on its battery.")
BUSY = later("Another program needs the processor.")


class OtherPrograms:
    """How much of the processor other programs use."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._looked, self._used = time.monotonic(), self._now()

    @property
    def seconds(self) -> float:
        """How long ago the last look was."""
        return time.monotonic() - self._looked

    def share(self) -> float:
        """Share of all cores that they used since the last look."""
        passed, before = self.seconds, self._used
        self._looked, self._used = time.monotonic(), self._now()
        machine, mine = (after - earlier for after, earlier in zip(self._used, before, strict=True))
        return max(machine - mine, 0.0) / max(passed, 1e-9) / (psutil.cpu_count() or 1)

    def _now(self) -> tuple[float, float]:
        """Processor seconds of all programs, and of this one."""
        machine, mine = psutil.cpu_times(), self._process.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # A guest's time stands in user and nice, too.
        guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        return sum(machine) - idle - guests, mine.user + mine.system


class Machine:
    """Looks at most once a second; between two looks the last answer counts."""

    def __init__(self) -> None:
        self._others = OtherPrograms()
        self._said = ""

    def trouble(self) -> str:
        """Why this is no time to compute something that nobody asked for, as a sentence; empty where it is one."""
        if self._others.seconds >= SECONDS:
            busy = self._others.share() > OTHERS
            self._said = ON_BATTERY if not on_mains() else BUSY if busy else ""
        return self._said


def on_mains() -> bool:
    """Whether the machine runs on mains power: one without a battery does; one of which it is not known does not."""
    look = getattr(psutil, "sensors_battery", None)
    battery = look() if look else None
    return battery is None or bool(battery.power_plugged)


POLL_SECONDS = 5.0
TURN_SECONDS = 600.0
"""So long it writes for one of several users, then for the next one."""
INDEX_SECONDS = 30.0
"""What was written drafts after so long, or from the next reply on."""

PATIENCE_SECONDS = 0.1
"""Between two tries to end it."""

Phase = Literal["off", "refused", "no model", "full", "not now", "waiting", "writing"]

_log = logging.getLogger("hierchat.chat")


class Spare(Protocol):
    """Whether the machine has time and power to spare."""

    def trouble(self) -> str:
        """Why not, as a sentence; empty where it has."""
        ...


@dataclass(frozen=True, slots=True)
class IdleState:
    """What is being done for one user. Tokens are those of the model that is loaded."""

    phase: Phase
    chosen: IdleSettings
    tokens: int = 0
    """That there are, what is being written with them."""
    written: int = 0
    """In phase "writing": since it began."""
    streams: int = 0
    """In phase "writing": replies at once."""
    reason: str = ""
    """In phase "not now"."""


class IdleGeneration:
    """A thread that lives while some user allows it. Whoever asks for a reply gets the model after one step at most;
    then it waits anew until nobody has asked for as long as the user chose."""

    def __init__(
        self,
        store: Store,
        slot: ModelSlot,
        index: Callable[[int, ServedModel], None] = lambda user, served: None,
        spare: Spare | None = None,
    ) -> None:
        """`index`: has what is kept of a user draft; called while no reply is being written."""
        self._store = store
        self._slot = slot
        self._index = index
        self._spare = spare or Machine()
        self._touched = 0.0
        self._trouble = ""
        self._stop = threading.Event()
        self._user: int | None = None
        self._writer: Writer | None = None
        self._running = threading.Lock()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False
        self._closed = threading.Event()

    def wake(self) -> None:
        """Somebody may have allowed it."""
        with self._lock:
            self._again = True
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._work, name="learning", daemon=True)
                self._thread.start()

    def choose(self, user_id: int, chosen: IdleSettings) -> None:
        """What a user allows from now on."""
        self._store.users.set_idle_settings(user_id, chosen)
        if chosen.on:
            self.wake()
        else:
            self.end()

    def touched(self) -> None:
        """Somebody uses the page: it gives way as if a reply had been asked for."""
        self._touched = time.monotonic()
        self._stop.set()

    def end(self) -> None:
        """End what is being written; it is kept. It begins again when nobody has asked for as long as was chosen."""
        with self._ended():
            pass

    def delete(self, user_id: int) -> bool:
        """Delete all that was written for a user; the answer is Connection.rewrite's."""
        with self._ended():
            return self._store.generated.delete(user_id)

    def state(self, user_id: int) -> IdleState:
        """What is being done for this user."""
        chosen, served, writer = self._store.users.idle_settings(user_id), self._slot.model, self._writer
        local = served is not None and served.is_local
        tokens = self._store.generated.size(user_id, served.model_key).tokens if served and local else 0
        if not chosen.on:
            return IdleState("off", chosen, tokens)
        if self._store.users.drafts_from(user_id) != "all":
            return IdleState("refused", chosen, tokens)
        if not local:
            return IdleState("no model", chosen)
        if writer is not None and self._user == user_id:
            return IdleState("writing", chosen, tokens, writer.tokens, writer.streams)
        if tokens >= chosen.most_tokens:
            return IdleState("full", chosen, tokens)
        if self._trouble:
            return IdleState("not now", chosen, tokens, reason=self._trouble)
        return IdleState("waiting", chosen, tokens)

    def close(self) -> None:
        """End what it is at; it is kept."""
        self._closed.set()
        self._stop.set()
        if (thread := self._thread) is not None:
            thread.join()

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """While it lasts nothing is written."""
        self.touched()
        while not self._running.acquire(timeout=PATIENCE_SECONDS):
            self._stop.set()  # it may have begun meanwhile
        try:
            yield
        finally:
            self._running.release()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._again or self._closed.is_set():
                    self._thread = None
                    return
                self._again = False
            try:
                while not self._closed.wait(POLL_SECONDS) and self._look():
                    pass
            except Exception as error:  # replies are as fast as before
                self._trouble = logs.error_message(error)
                _log.warning("Nothing more is written in spare time. %s", logs.error_message(error))

    def _look(self) -> bool:
        """Write if the time has come; whether anybody allows it."""
        learners, served = self._store.users.with_idle_generation(), self._slot.model
        if not learners:
            return False
        if served is None or not served.is_local:
            return True
        self._trouble = self._spare.trouble()
        due = [user for user in learners if self._is_due(user, served)]
        if due and not self._trouble:
            shipped_scripts()  # takes seconds the first time: nobody is to wait for that
            with self._running:
                self._write(served, due)
        return True

    def _is_due(self, user: int, served: ServedModel) -> bool:
        chosen = self._store.users.idle_settings(user)
        idle = min(self._slot.scheduler.idle_seconds, time.monotonic() - self._touched)
        room = self._store.generated.size(user, served.model_key).tokens < chosen.most_tokens
        return idle >= chosen.after_minutes * 60 and room

    def _write(self, served: ServedModel, due: list[int]) -> None:
        """For one user after the other, until somebody wants the model or the machine."""
        touched, writer = self._touched, None
        try:
            with self._slot.scheduler.spare() as wanted:
                if wanted is None or self._slot.model is not served or self._touched != touched:
                    return
                self._stop = wanted
                while due and not wanted.is_set() and not self._closed.is_set():
                    user = min(due, key=lambda one: self._store.generated.size(one, served.model_key).tokens)
                    settings = self._slot.settings(served.name)
                    writer = Writer(self._store, served, user, settings, wanted)
                    self._user, self._writer = user, writer
                    if not self._stretch(writer, served, user, TURN_SECONDS if len(due) > 1 else None):
                        due.remove(user)
                    if not wanted.is_set():
                        writer.keep()
        finally:
            # The model is given back by now: whoever asked does not wait for the disk.
            self._user, self._writer = None, None
            if writer is not None:
                writer.keep()

    def _stretch(self, writer: Writer, served: ServedModel, user: int, seconds: float | None) -> bool:
        """Write for one user, at most so long; whether there may be more to write."""
        room = (
            self._store.users.idle_settings(user).most_tokens
            - self._store.generated.size(user, served.model_key).tokens
        )
        began = indexed = time.monotonic()

        def goes_on() -> bool:
            nonlocal indexed
            now = time.monotonic()
            if now - indexed >= INDEX_SECONDS:
                indexed = now
                self._index(user, served)
            self._trouble = self._spare.trouble()
            return not self._trouble and writer.tokens < room and (seconds is None or now - began < seconds)

        writer.write(waiting_scripts(self._store, user, served.model_key), goes_on)
        if not writer.stopped:
            self._index(user, served)
        return seconds is not None and time.monotonic() - began >= seconds
