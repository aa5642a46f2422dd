"""The ladder: ways to compute a model, the fastest first. The first that proves itself is taken.

A way of which nobody knows yet whether it works on this device may raise, compute nonsense, run out of memory, never
answer, or end the program. Each of these is a reason to take the next one, and each is told.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from hierchat.config import APP
from hierchat.engine.errors import OutOfMemory, clear_memory_errors
from hierchat.engine.runner import Runner

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
    """What earlier starts found (engine/landings.py)."""

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
