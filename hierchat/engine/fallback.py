"""Try the implementations that may compute a model, fastest first, and take the first that proves itself.
One that raises, computes nonsense, needs too much memory, hangs or ends the program is reported and skipped."""

from __future__ import annotations

import gc
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, Field

from hierchat.config import APP, cache_dir
from hierchat.engine.engine import OutOfMemory, clear_memory_errors
from hierchat.engine.runner import Runner
from hierchat.models.cache import write_whole

log = logging.getLogger(__name__)
LIMIT_S = 300.0
"""Seconds in which an implementation must be made and prove itself on a GPU: compiling its kernels is among them."""
DEATHS = 2
"""Times that the program may end while an implementation is tried before that is taken for its doing."""
INEXACT = "its last bits depend on the drafts beside a token"

T = TypeVar("T")


class Implementation(NamedTuple):
    """Name and maker of one way to compute a model; `make` builds its runner, which tests itself."""

    name: str
    make: Callable[[], Runner]
    drafts: bool = True


@dataclass(frozen=True, slots=True)
class Selected:
    """Runner that computes the model, and why nothing faster does: the reason by the name of each tried before."""

    runner: Runner
    implementation: str
    failed: Mapping[str, str] = field(default_factory=dict)


class NotRight(Exception):
    """A runner does not compute what it should; the text says what is wrong."""


class NoImplementation(Exception):
    """No implementation computes the model. `failed`: the reason of each."""

    def __init__(self, failed: Mapping[str, str], *, memory: bool = False, device: bool = False) -> None:
        """Say why: `memory`: it ran out at the last one. `device`: it answers no more."""
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
        self.failed, self.memory, self.device = failed, memory, device


class AttemptRecord(BaseModel, extra="forbid"):
    """Record of what computes a model on a device, and what failed; void under other versions (`made_with`)."""

    model: str
    device: str
    made_with: str
    implementation: str = ""
    failed: dict[str, str] = Field(default_factory=dict)
    lost: dict[str, str] = Field(default_factory=dict, description="not tried again, by the reason")
    trying: str = Field(default="", description="what was being tried when this was written")
    deaths: dict[str, int] = Field(default_factory=dict)
    inexact: str = Field(default="", description="why drafts may change a word at a near tie")


class AttemptLog:
    """Keep a model's AttemptRecord in the cache folder, for the next start and for `hierchat doctor`."""

    def __init__(self, record: AttemptRecord, model_key: str, *, gpu: bool = True) -> None:
        """Read the record. `gpu`: False keeps only failures, and blames no end of the program on what was tried."""
        name = hashlib.sha256(f"{model_key} {record.device}".encode()).hexdigest()[:32]
        self._file = folder() / f"{name}.json"
        self._gpu, self._record = gpu, record
        with suppress(OSError, ValueError):
            kept = AttemptRecord.model_validate_json(self._file.read_bytes())
            if kept.made_with == record.made_with:
                record.lost, record.deaths = kept.lost, kept.deaths
                if died := kept.trying:
                    count = record.deaths[died] = record.deaths.get(died, 0) + 1
                    if count >= DEATHS:
                        record.lost[died] = f"the program ended {count} times while this was tried"

    def skip(self, name: str) -> str | None:
        """Return why this implementation is not to be tried; None where it is."""
        return self._record.lost.get(name)

    def trying(self, name: str) -> None:
        """Note which implementation is tried now: the program may not live to tell."""
        self._record.trying = name
        if self._gpu:
            self._write()

    def tried(self, name: str, lost: str = "") -> None:
        """Note that an implementation answered, or failed; `lost`: why the next start is not to try it."""
        self._record.trying = ""
        self._record.deaths.pop(name, None)
        if lost:
            self._record.lost[name] = lost
        if self._gpu:
            self._write()

    def end(self, implementation: str, failed: Mapping[str, str], inexact: str = "") -> None:
        """Note which implementation computes the model now, "" for none, and what failed before it."""
        found = self._record
        found.implementation, found.failed, found.inexact = implementation, dict(failed), inexact
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # then the next start tries again
            if not (self._gpu or self._record.failed):
                self._file.unlink(missing_ok=True)
                return
            write_whole(self._file, f"{self._record.model_dump_json(indent=1)}\n".encode())


def folder() -> Path:
    """Return the folder of the records; may be missing, and be deleted."""
    return cache_dir() / "ladder"


def attempt_records() -> list[AttemptRecord]:
    """Read all records that are kept, by model and device; damaged files are left out."""
    found = []
    for file in folder().glob("*.json"):
        with suppress(OSError, ValueError):
            found.append(AttemptRecord.model_validate_json(file.read_bytes()))
    return sorted(found, key=lambda one: (one.model, one.device))


@dataclass(slots=True)
class Selection:
    """Try implementations in turn, with the proof that each has to give, and limits."""

    prove: Callable[[Runner], None]
    """Raises where a runner does not compute what it should."""
    limit: float | None = None
    """Seconds for each; None: it is waited for."""
    answers: Callable[[], bool] = lambda: True
    """Whether the device still does, asked after a failure."""
    log: AttemptLog | None = None
    failed: dict[str, str] = field(default_factory=dict)
    out_of_memory: bool = False
    """Whether the latest one ran out of memory."""

    def first_of(self, order: Sequence[Implementation]) -> Selected:
        """Find the first implementation whose runner proves itself, an inexact one only if no exact one drafts as well.
        Raises NoImplementation."""
        drafting = [one for one in order if one.drafts]
        inexact: list[Implementation] = []
        for one in drafting:
            if (runner := self._runner(one)) is None:
                continue
            if runner.exact or (one is drafting[-1] and not inexact):
                return Selected(runner, one.name, self.failed)
            self.failed[one.name] = INEXACT
            inexact.append(one)
            del runner
            gc.collect()
        for one in [*inexact[:1], *(one for one in order if not one.drafts)]:
            if (runner := self._runner(one)) is not None:
                before = [other.name for other in order[: order.index(one)]]
                return Selected(runner, one.name, {name: self.failed[name] for name in before})
        raise NoImplementation(self.failed, memory=self.out_of_memory)

    def _runner(self, one: Implementation) -> Runner | None:
        """Make and prove a runner; or None, with the reason in `failed`. Raises NoImplementation where the device
        answers no more."""
        if self.log and (reason := self.log.skip(one.name)):
            self.failed[one.name] = reason
            return None
        if self.log:
            self.log.trying(one.name)
        try:
            runner = within(self.limit, lambda: self._made(one))
        except Exception as error:  # whatever it is, the next one may do better
            reason = self.failed[one.name] = in_few_words(error)
            self.out_of_memory = isinstance(error, OutOfMemory)
            log.warning("%s is not used: %s", one.name, reason, exc_info=error)
        else:
            if self.log:
                self.log.tried(one.name)
            return runner
        gc.collect()  # the error is gone by now, and with it what its frames held
        alive = self.answers()
        if self.log:
            self.log.tried(one.name, "" if alive else reason)
        if not alive:
            raise NoImplementation(self.failed, device=True)
        return None

    def _made(self, one: Implementation) -> Runner:
        with clear_memory_errors():
            runner = one.make()
            self.prove(runner)
        return runner


def within(limit: float | None, work: Callable[[], T]) -> T:
    """Return or raise what `work` does. Raises NotRight after `limit` seconds; its thread then continues unobserved."""
    if limit is None:
        return work()
    answer = Future[T]()

    def do() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=do, name="implementation", daemon=True).start()
    if not wait([answer], limit).done:
        raise NotRight(f"no answer within {limit:g} seconds")
    return answer.result()


def in_few_words(error: BaseException) -> str:
    """Describe a failure in a few words; our own exceptions say it themselves."""
    if isinstance(error, OutOfMemory):
        return "memory ran out"
    text = (str(error).strip().splitlines() or [""])[0].strip()
    if type(error).__module__.split(".")[0] == APP and text:
        return text.rstrip(".")
    return f"{type(error).__name__}: {text}".rstrip(": .")
