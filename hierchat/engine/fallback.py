"""The ladder: ways to compute a model, the fastest first. The first that proves itself is taken.

A way of which nobody knows yet whether it works on this device may raise, compute nonsense, run out of memory, never
answer, or end the program. Each of these is a reason to take the next one, and each is told."""

from __future__ import annotations

import gc
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, Field

from hierchat.config import APP, cache_dir
from hierchat.engine.engine import OutOfMemory, clear_memory_errors
from hierchat.engine.runner import Runner
from hierchat.models.cache import write_whole

log = logging.getLogger(__name__)
LIMIT_S = 300.0
"""Seconds that a way may take to be made and to prove itself on a GPU: compiling its kernels is among them."""
INEXACT = "its last bits depend on the drafts beside a token"

T = TypeVar("T")


class Rung(NamedTuple):
    """One way to compute a model; `make` builds its runner, which tests itself."""

    name: str
    make: Callable[[], Runner]
    drafts: bool = True
    """Whether its runner drafts."""


@dataclass(frozen=True, slots=True)
class Landing:
    """What computes the model, and why nothing faster does: the reason by the name of each rung before."""

    runner: Runner
    rung: str
    failed: Mapping[str, str] = field(default_factory=dict)


class Notes(Protocol):
    """What earlier starts found (engine/fallback.py)."""

    def skip(self, rung: str) -> str | None:
        """Why this rung is not to be tried at all."""
        ...

    def trying(self, rung: str) -> None:
        """It is tried now: the program may not live to tell."""
        ...

    def tried(self, rung: str, lost: str = "") -> None:
        """It answered, or failed; `lost`: why the next start is not to try it."""
        ...


class NotRight(Exception):
    """A runner does not compute what it should; the text says in what."""


class NoAnswer(Exception):
    """Nothing came within the time limit."""


class NoRung(Exception):
    """No way works. `failed`: the reason of each."""

    def __init__(self, failed: Mapping[str, str], *, memory: bool = False, device: bool = False) -> None:
        """`memory`: it ran out at the last rung. `device`: it answers no more."""
        super().__init__("; ".join(f"{rung}: {reason}" for rung, reason in failed.items()))
        self.failed, self.memory, self.device = failed, memory, device


def climb(
    rungs: Sequence[Rung],
    prove: Callable[[Runner], None],
    *,
    limit: float | None = None,
    answers: Callable[[], bool] = lambda: True,
    notes: Notes | None = None,
) -> Landing:
    """The first rung whose runner is made and passes `prove`, which raises where it does not compute what it should.

    One that drafts, but not to the bit, is taken only where no other is exact that drafts as well. `limit`: seconds for
    each rung; None: it is waited for. `answers`: whether the device still does, asked after a failure. Raises NoRung.
    """
    tries = _Tries(prove, limit, answers, notes)
    drafting = [rung for rung in rungs if rung.drafts]
    inexact: list[Rung] = []
    for rung in drafting:
        if (runner := tries.runner(rung)) is None:
            continue
        if runner.exact or (rung is drafting[-1] and not inexact):
            return Landing(runner, rung.name, tries.failed)
        tries.failed[rung.name] = INEXACT
        inexact.append(rung)
        del runner
        gc.collect()
    for rung in [*inexact[:1], *(rung for rung in rungs if not rung.drafts)]:
        if (runner := tries.runner(rung)) is not None:
            before = [one.name for one in rungs[: rungs.index(rung)]]
            return Landing(runner, rung.name, {name: tries.failed[name] for name in before})
    raise NoRung(tries.failed, memory=tries.memory)


class _Tries:
    """Rungs tried one after the other, and what became of them."""

    def __init__(
        self,
        prove: Callable[[Runner], None],
        limit: float | None,
        answers: Callable[[], bool],
        notes: Notes | None,
    ) -> None:
        self._prove, self._limit, self._answers, self._notes = prove, limit, answers, notes
        self.failed: dict[str, str] = {}
        self.memory = False
        """Whether the latest one ran out of memory."""

    def runner(self, rung: Rung) -> Runner | None:
        """The rung's runner, proved; or None, and the reason in `failed`. Raises NoRung where the device answers no
        more."""
        if self._notes and (reason := self._notes.skip(rung.name)):
            self.failed[rung.name] = reason
            return None
        if self._notes:
            self._notes.trying(rung.name)
        try:
            runner = within(self._limit, lambda: self._made(rung))
        except Exception as error:  # whatever it is, the next one may do better
            reason = self.failed[rung.name] = said(error)
            self.memory = isinstance(error, OutOfMemory)
            log.warning("%s is not used: %s", rung.name, reason, exc_info=error)
        else:
            if self._notes:
                self._notes.tried(rung.name)
            return runner
        gc.collect()  # the error is gone by now, and with it what its frames held
        alive = self._answers()
        if self._notes:
            self._notes.tried(rung.name, "" if alive else reason)
        if not alive:
            raise NoRung(self.failed, device=True)
        return None

    def _made(self, rung: Rung) -> Runner:
        with clear_memory_errors():
            runner = rung.make()
            self._prove(runner)
        return runner


def within(limit: float | None, work: Callable[[], T]) -> T:
    """What `work` returns or raises. Raises NoAnswer after `limit` seconds: then it goes on in a thread of its own, if
    it ever does, and nobody waits for it."""
    if limit is None:
        return work()
    came: list[T] = []
    raised: list[BaseException] = []

    def do() -> None:
        try:
            came.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=do, name="rung", daemon=True)
    thread.start()
    _wait(thread, limit)
    if came:
        return came[0]
    if raised:
        raise raised.pop()
    raise NoAnswer(f"no answer within {limit:g} seconds")


def _wait(thread: threading.Thread, limit: float) -> None:
    thread.join(limit)


def said(error: BaseException) -> str:
    """A failure in a few words; our own exceptions say it themselves."""
    if isinstance(error, OutOfMemory):
        return "memory ran out"
    text = (str(error).strip().splitlines() or [""])[0].strip()
    if type(error).__module__.split(".")[0] == APP and text:
        return text.rstrip(".")
    return f"{type(error).__name__}: {text}".rstrip(": .")


# Which way computes each model here, and why nothing faster does: kept in the cache folder, for the next
# start and for `hierchat doctor`.


DEATHS = 2
"""Times that the program may end while a rung is tried before that is taken for the rung's doing."""


class Landed(BaseModel, extra="forbid"):
    """Of one model on one device. Under other versions (`made_with`) it counts no more."""

    model: str
    device: str
    made_with: str
    rung: str = ""
    failed: dict[str, str] = Field(default_factory=dict)
    lost: dict[str, str] = Field(default_factory=dict, description="not tried again, by the reason")
    trying: str = Field(default="", description="what was being tried when this was written")
    deaths: dict[str, int] = Field(default_factory=dict)
    inexact: str = Field(default="", description="why drafts may change a word at a near tie")


class LandingNotes:
    """The notes of one model on one device (ladder.Notes)."""

    def __init__(self, model: str, model_key: str, device: str, made_with: str, *, gpu: bool = True) -> None:
        """`made_with` names the versions. `gpu`: of the processor only what failed is kept, and no end of the program
        is blamed on a rung."""
        name = hashlib.sha256(f"{model_key} {device}".encode()).hexdigest()[:32]
        self._file = folder() / f"{name}.json"
        self._gpu = gpu
        self._said = Landed(model=model, device=device, made_with=made_with)
        with suppress(OSError, ValueError):
            kept = Landed.model_validate_json(self._file.read_bytes())
            if kept.made_with == made_with:
                self._said.lost, self._said.deaths = kept.lost, kept.deaths
                if kept.trying:
                    self._died(kept.trying)

    def skip(self, rung: str) -> str | None:
        """Why this rung is not to be tried."""
        return self._said.lost.get(rung)

    def trying(self, rung: str) -> None:
        """See ladder.Notes."""
        self._said.trying = rung
        if self._gpu:
            self._write()

    def tried(self, rung: str, lost: str = "") -> None:
        """See ladder.Notes."""
        self._said.trying = ""
        self._said.deaths.pop(rung, None)
        if lost:
            self._said.lost[rung] = lost
        if self._gpu:
            self._write()

    def landed(self, landing: Landing, inexact: str) -> None:
        """What computes it now."""
        self._said.rung, self._said.failed, self._said.inexact = landing.rung, dict(landing.failed), inexact
        self._write()

    def fell(self, failed: dict[str, str]) -> None:
        """Nothing does."""
        self._said.rung, self._said.failed = "", failed
        self._write()

    def _died(self, rung: str) -> None:
        count = self._said.deaths[rung] = self._said.deaths.get(rung, 0) + 1
        if count >= DEATHS:
            self._said.lost[rung] = f"the program ended {count} times while this was tried"

    def _write(self) -> None:
        with suppress(OSError):  # then the next start tries again
            if not (self._gpu or self._said.failed):
                self._file.unlink(missing_ok=True)
                return
            write_whole(self._file, f"{self._said.model_dump_json(indent=1)}\n".encode())


def folder() -> Path:
    """Where they lie; may be missing, and be deleted."""
    return cache_dir() / "ladder"


def landings() -> list[Landed]:
    """All that are kept, by model and device; damaged files are left out."""
    found = []
    for file in folder().glob("*.json"):
        with suppress(OSError, ValueError):
            found.append(Landed.model_validate_json(file.read_bytes()))
    return sorted(found, key=lambda one: (one.model, one.device))


def forget_lost() -> None:
    """Have everything tried again at the next start."""
    for file in folder().glob("*.json"):
        with suppress(OSError):
            file.unlink()
