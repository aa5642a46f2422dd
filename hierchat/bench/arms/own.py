"""Arms behind our own engine: what the program drafts with, parts of it, published methods, and fixed plans."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from hierchat.bench.arms.arm import Answer
from hierchat.bench.arms.names import DRAFT, PLAN, VANILLA
from hierchat.bench.arms.plans import parse_plan
from hierchat.bench.errors import ArmError
from hierchat.bench.peers.programs.memory import peak_mb
from hierchat.bench.published import PUBLISHED
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Calibration
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.engine.decoding import common_prefix
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.drafter import HierarchicalDrafter
from hierchat.hierarchy.expected import by_renewal
from hierchat.hierarchy.plan import Plan
from hierchat.runtime.drafters import Memory, drafter_over, reply_drafter, with_models
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.levels import Levels

PLAIN = GenerationSettings()
Drafting = Callable[[Hosted, Memory, int | None, GenerationSettings], Proposer]
"""Makes the drafter of one reply: of the model, what the arm carries along, and the fixed width, if any."""

OWN: dict[str, Drafting | None] = {
    VANILLA: None,
    "context": lambda hosted, memory, width, settings: drafter_over(
        hosted, [], memory.acceptance, width, settings=settings
    ),
    "context+history": lambda hosted, memory, width, settings: drafter_over(
        hosted, memory.history, memory.acceptance, width, memory.successors, settings
    ),
    "hierchat": lambda hosted, memory, width, settings: reply_drafter(
        hosted, memory, settings, Event(), width
    ),
    "hsd": None,
    **dict.fromkeys(PUBLISHED),
}
"""None where nothing is drafted, where an object of PUBLISHED drafts, and where models alone do."""


def plan_ms(drafter: Proposer | None, context: int) -> float | None:
    """Milliseconds per token that a fixed plan is expected to take; None where it is not fixed."""
    if not isinstance(drafter, HierarchicalDrafter) or not drafter.fixed:
        return None
    return by_renewal(drafter.hierarchy.ladder(context), drafter.fixed)


class Carried:
    """What an arm of ours drafts with, and carries from reply to reply. `hosted`: the model, or a stand-in; `beside`:
    history that is there from the beginning."""

    def __init__(self, name: str, hosted: Hosted, width: int | None, beside: Sequence[Source] = ()) -> None:
        self.name = name
        self.width = width
        self._hosted = hosted
        self._beside = beside
        self._memory = Memory()
        self._memory.history += beside
        published = PUBLISHED.get(name)
        self._published = published(width, hosted.statistics) if published else None
        self._stack = stack_of(name, hosted)

    def drafter(self, settings: GenerationSettings = PLAIN) -> Proposer | None:
        """For the next reply; None is plain decoding."""
        if stack := self._stack:
            retrieval = stack.plan is not None and stack.plan.retrieval
            return with_models(
                self._hosted, self._memory, settings, Event(), stack.levels, stack.plan, retrieval=retrieval
            )
        drafting = OWN.get(self.name)
        return drafting(self._hosted, self._memory, self.width, settings) if drafting else self._published

    @property
    def calibration(self) -> Calibration:
        """How estimated chances compared with what was accepted, by source; empty where nothing estimates."""
        return self._memory.acceptance.calibration()

    def learn(self, reply: Sequence[int]) -> None:
        """The reply is finished and becomes history."""
        self._memory.history[0].add(reply)
        if self._published:
            self._published.learn(reply)

    def forget(self) -> None:
        """History starts anew."""
        # What was learned of the sources stays, as the program keeps it; the successors are text.
        self._memory = Memory(acceptance=self._memory.acceptance, levels=self._memory.levels)
        self._memory.history += self._beside
        if self._published:
            self._published.forget()


class OwnArm:
    """Our engine, with a drafter per reply or, without one, plain decoding at its fastest."""

    def __init__(
        self, name: str, hosted: Hosted, width: int | None = None, beside: Sequence[Source] = ()
    ) -> None:
        self.name = name
        self._hosted = hosted
        self._width, self._beside = width, beside
        self._carried = self.another()
        self._held: dict[int, list[int]] = {}

    def another(self) -> Carried:
        """What another user of this arm begins with."""
        return Carried(self.name, self._hosted, self._width, self._beside)

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        drafter = self._carried.drafter(settings)
        engine = self._hosted.engine
        self._find_own_slots(prompt)
        reply: list[int] = []
        sources: Counter[str] = Counter()
        forwards, draft_ms = 0, 0.0
        expected = plan_ms(drafter, len(prompt))
        began = read = now = time.perf_counter()
        first: float | None = None
        for step in engine.generate(prompt, settings, drafter, padded=drafter is not None):
            now = time.perf_counter()
            if not step.tokens:
                read = now
                continue
            first = first or now
            reply += step.tokens
            sources.update(step.sources)
            forwards += 1
            draft_ms += step.draft_ms
        self._held = {id(sequence): list(sequence.tokens) for sequence in self._sequences}
        return Answer(
            reply,
            now - read,
            (first or now) - began,
            forwards,
            draft_ms,
            dict(sources),
            peak_mb(),
            expected,
            drafter.reply_ms / len(reply) if isinstance(drafter, HierarchicalDrafter) and reply else None,
        )

    @property
    def _sequences(self) -> list[CachedSequence]:
        levels = self._hosted.levels
        return [self._hosted.local.sequence, *(levels.sequences if levels else ())]

    def _find_own_slots(self, prompt: Sequence[int]) -> None:
        """All arms share the slots of target and draft models; none profits from what another read or wrote."""
        for sequence in self._sequences:
            held = self._held.get(id(sequence), ())
            sequence.rollback(min(common_prefix(sequence.tokens, prompt), common_prefix(held, prompt)))

    def learn(self, reply: Sequence[int]) -> None:
        self._carried.learn(reply)

    def forget(self) -> None:
        self._carried.forget()

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Stack:
    """The draft models of an arm; `plan`: what they follow, None for what they choose."""

    levels: Levels
    plan: Plan | None = None


def stack_of(name: str, hosted: Hosted) -> Stack | None:
    """None for arms in which the databases alone draft, or the program decides. Raises ArmError."""
    if name != "hsd" and not name.startswith((DRAFT, PLAN)):
        return None
    if not hosted.levels or not hosted.levels.sequences:
        raise ArmError(f"{hosted.name} has no draft model here: " + _why_none(hosted))
    names = hosted.levels.hierarchy.names
    if name.startswith(PLAN):
        return Stack(
            hosted.levels.only(names[:-1], retrieval=True), parse_plan(name.removeprefix(PLAN), names)
        )
    try:
        return Stack(hosted.levels.only(names[:-1] if name == "hsd" else [name.removeprefix(DRAFT)]))
    except KeyError as error:
        raise ArmError(f"no draft model is called {error}; there is {', '.join(names[:-1])}") from error


def _why_none(hosted: Hosted) -> str:
    left_out = hosted.levels.left_out if hosted.levels else ()
    return "; ".join(f"{one.name}: {one.reason}" for one in left_out) or "models.yaml names none"
