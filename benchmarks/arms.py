"""Define the arms that are compared: our engine with its ways of drafting, and the names of other programs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from threading import Event
from typing import Any, Protocol

from benchmarks.peers.environment import ArmError, unknown
from benchmarks.peers.programs.memory import peak_mb
from benchmarks.published import PUBLISHED
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.kernel_arrays import SLOTS, SOURCES
from hierchat.drafting.payoff import Payoff
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source, Successors
from hierchat.engine.engine import GenerationRequest
from hierchat.engine.generation import common_prefix
from hierchat.engine.runner import CachedSequence
from hierchat.hierarchy.hierarchical_drafter import HierarchicalDrafter
from hierchat.hierarchy.plan import MOST, Plan, by_renewal
from hierchat.hierarchy.planner import Hierarchy
from hierchat.runtime.drafters import Memory, reply_drafter, with_models
from hierchat.runtime.served_model import Levels, ServedModel

Calibration = dict[str, list[tuple[float, float, int]]]


def calibration(acceptance: Acceptance) -> Calibration:
    """Return for each source and range of chances: the mean chance, the accepted share, and the count."""
    found: Calibration = {}
    for source in dict.fromkeys(SOURCES):
        bins = acceptance.curve[[slot for slot in range(SLOTS) if SOURCES[slot] == source]].sum(0)
        if bins.any():
            found[source] = [
                (chances / number, right / number, int(number)) for number, chances, right in bins if number
            ]
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold one reply and its figures; None where a peer does not report one."""

    reply: list[int]
    seconds: float
    """Decoding: from the prompt being read but for its last token to the last token."""
    first_seconds: float
    """From the request to the first token, reading the prompt included."""
    forwards: int | None = None
    draft_ms: float | None = None
    sources: dict[str, int] = field(default_factory=dict)
    """Tokens of the reply by source."""
    peak_mb: float | None = None
    """The most memory that its process held so far; our own arms share one."""
    expected_ms: float | None = None
    """Per token, of the plan of draft models that was fixed for the arm: said before the reply began."""
    step_ms: float | None = None
    """Per token, of the steps alone: without what draft models read before they could draft."""


class Arm(Protocol):
    """Answer prompts in one way, as a run compares them."""

    name: str

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        """Answer a prompt. An arm that raises is out, and the others go on."""
        ...

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        """Add a finished reply to the history, and the last LEAD tokens of its prompt."""
        ...

    def forget(self) -> None:
        """Empty the history."""
        ...

    def close(self) -> None: ...


def rotated(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """Return the order of arms in a turn of the run, counted from 0: another one leads each time. A further shift per
    round keeps the order from going in step with groups that take turns, too."""
    start = (turn + turn // len(arms)) % len(arms)
    return [*arms[start:], *arms[:start]]


# How arms are called on the command line, and which one is the baseline of which.


VANILLA = "vanilla"
HIERCHAT, NO_HISTORY = "hierchat", "no-history"
"""All that drafts, and the same without what was written in earlier chats."""
ORACLE = "oracle"
"""Drafts that are all right, as many as the width has room for: what verification brings at most."""
ORACLE_WIDTH = 8
"""Positions per forward of the oracle where no width is fixed."""
BASELINES = {
    "transformers": "transformers",
    "transformers-pld": "transformers",
    "transformers-assisted": "transformers",
    "transformers-bf16": "transformers-bf16",
    "llama.cpp": "llama.cpp",
    "llama.cpp-lookup": "llama.cpp",
    "llama.cpp-lookup-10": "llama.cpp",
    "llama.cpp-draft": "llama.cpp",
    "ik": "ik",
    "ik-suffix": "ik",
    "ik-ngram-mod": "ik",
    "flashspec": "transformers",
    "dejavuu": "transformers",
}
"""Peers, and the arm that decodes plainly with the same stack."""
PEERS = tuple(BASELINES)
TIMED = ("llama.cpp",)
"""Peers of which a single forward can be timed."""
DRAFT = "draft:"
"""Before the name of a draft model: the arm in which nothing else drafts."""
PLAN = "plan:"
"""Before a plan: the arm that follows it at every step."""


def baseline_of(arm: str) -> str:
    """Return the arm that decodes plainly with the same stack."""
    return BASELINES.get(arm, VANILLA)


# Plans tried by hand: the arms plan:databases+NAME=8+NAME=12, lowest level first, each with its draft
# length.


DATABASES = "databases"


def parse_plan(text: str, names: Sequence[str]) -> Plan:
    """Parse a plan of the levels called `names`, of which the last is the target. Raises ArmError."""
    parts = text.split("+")
    retrieval = parts[0] == DATABASES
    levels, lengths = [], []
    for part in parts[retrieval:]:
        name, _, length = part.rpartition("=")
        if name not in names[:-1]:
            there = ", ".join(names[:-1]) or "none"
            raise ArmError(
                f"no draft model is called {name or part!r} in the plan {text!r}; there is {there}"
            )
        if not length.isdecimal() or not 1 <= int(length) <= MOST:
            raise ArmError(f"{part!r}: a level is written NAME=LENGTH, with a length of 1 to {MOST}")
        levels.append(names.index(name))
        lengths.append(int(length))
    if sorted(set(levels)) != levels:
        raise ArmError(f"the levels of a plan rise: {', '.join(names)}")
    return Plan((*levels, len(names) - 1), tuple(lengths), retrieval)


# Arms behind our own engine: what the program drafts with, parts of it, published methods, and fixed plans.


PLAIN = GenerationSettings()
Drafting = Callable[[ServedModel, Memory, int | None, GenerationSettings], Proposer]
"""Makes the drafter of one reply: of the model, what the arm carries along, and the fixed width, if any."""

OWN: dict[str, Drafting | None] = {
    VANILLA: None,
    "context": lambda served, memory, width, settings: Drafter(
        [], memory.learned.acceptance, served.local.latency, width, settings=settings
    ),
    "context+history": lambda served, memory, width, settings: Drafter(
        memory.history,
        memory.learned.acceptance,
        served.local.latency,
        width,
        memory.learned.successors,
        settings,
    ),
    **dict.fromkeys(
        (HIERCHAT, NO_HISTORY),
        lambda served, memory, width, settings: reply_drafter(served, memory, settings, Event(), width),
    ),
    "hsd": None,
    ORACLE: None,
    **dict.fromkeys(PUBLISHED),
}
"""None where nothing is drafted, where an object of PUBLISHED drafts, and where models alone or an oracle do."""


def plan_ms(drafter: Proposer | None, context: int) -> float | None:
    """Return the milliseconds per token that a fixed plan is expected to take, or None where it is not fixed."""
    if not isinstance(drafter, HierarchicalDrafter) or not drafter.fixed:
        return None
    return by_renewal(drafter.hierarchy.stack(context), drafter.fixed)


class Carried:
    """Keep what an arm of ours drafts with from reply to reply. `served`: the model, or a stand-in; `beside`: history
    that is there from the beginning."""

    def __init__(
        self, name: str, served: ServedModel, width: int | None, beside: Sequence[Source] = ()
    ) -> None:
        self.name = name
        self.width = width
        self._served = served
        self._beside = beside
        self._memory = Memory()
        self._memory.history += beside
        published = PUBLISHED.get(name)
        self._published = published(width, served.statistics) if published else None
        self._stack = stack_of(name, served)

    def drafter(self, settings: GenerationSettings = PLAIN) -> Proposer | None:
        """Make the drafter of the next reply; None means plain decoding."""
        if stack := self._stack:
            retrieval = stack.plan is not None and stack.plan.retrieval
            return with_models(
                self._served, self._memory, settings, Event(), stack.levels, stack.plan, retrieval=retrieval
            )
        drafting = OWN.get(self.name)
        return drafting(self._served, self._memory, self.width, settings) if drafting else self._published

    @property
    def payoff(self) -> Payoff | None:
        """Return the estimate of what drafting gains; None if a width or a plan is fixed."""
        follows = OWN.get(self.name) and not self.width
        return self._memory.learned.payoff if follows else None

    @property
    def calibration(self) -> Calibration:
        """Return how estimated chances compare with what was accepted; empty where nothing estimates."""
        return calibration(self._memory.learned.acceptance)

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        """Add a finished reply to the history, and the last LEAD tokens of its prompt."""
        self._memory.history[0].add([*lead, *reply])
        if self._published:
            self._published.learn(reply)

    def forget(self) -> None:
        """Empty the history."""
        # What was learned of the sources stays, as the program keeps it; the successors are text.
        kept = replace(self._memory.learned, successors=Successors())
        self._memory = Memory(learned=kept)
        self._memory.history += self._beside
        if self._published:
            self._published.forget()


class RightDrafts(Proposer):
    """Propose what the target will write. `reply`: the tokens that it writes."""

    def __init__(self, reply: Sequence[int], width: int) -> None:
        self._left, self._most = list(reply), width - 1

    def observe(self, tokens: Sequence[int], top: Any = None) -> None:
        del self._left[: len(tokens)]

    def propose(self, limit: int | None = None) -> DraftTree:
        tokens = self._left[: self._most if limit is None else min(self._most, limit)]
        return DraftTree(
            tuple(tokens), tuple(range(-1, len(tokens) - 1)), (ORACLE,) * len(tokens), (1.0,) * len(tokens)
        )


class OwnArm:
    """Answer with our engine and a drafter per reply or, without one, plain decoding at its fastest."""

    def __init__(
        self, name: str, served: ServedModel, width: int | None = None, beside: Sequence[Source] = ()
    ) -> None:
        self.name = name
        self._served = served
        self._width, self._beside = width, beside
        self._carried = self.another()
        self._held: dict[int, list[int]] = {}

    def another(self) -> Carried:
        """Make the drafting state with which another user of this arm begins."""
        return Carried(self.name, self._served, self._width, self._beside)

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        if self.name != ORACLE:
            return self._answer(prompt, settings, self._carried.drafter(settings))
        plain = self._answer(prompt, settings, None)
        return self._answer(prompt, settings, RightDrafts(plain.reply, self._width or ORACLE_WIDTH))

    def _answer(
        self, prompt: Sequence[int], settings: GenerationSettings, drafter: Proposer | None
    ) -> Answer:
        engine = self._served.engine
        self._find_own_slots(prompt)
        reply: list[int] = []
        sources: Counter[str] = Counter()
        forwards, draft_ms = 0, 0.0
        expected = plan_ms(drafter, len(prompt))
        began = read = now = time.perf_counter()
        first: float | None = None
        request = GenerationRequest(
            prompt, settings, drafter, padded=drafter is not None, payoff=self._carried.payoff
        )
        for step in engine.generate(request):
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
        levels = self._served.levels
        return [self._served.local.sequence, *(levels.sequences if levels else ())]

    def _find_own_slots(self, prompt: Sequence[int]) -> None:
        """Roll back what other arms read or wrote: all arms share the slots of target and draft models."""
        for sequence in self._sequences:
            held = self._held.get(id(sequence), ())
            sequence.rollback(min(common_prefix(sequence.tokens, prompt), common_prefix(held, prompt)))

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        self._carried.learn(reply, lead)

    def forget(self) -> None:
        self._carried.forget()

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Stack:
    """Draft models of an arm, and the `plan` that they follow; None where they choose it."""

    levels: Levels
    plan: Plan | None = None


def stack_of(name: str, served: ServedModel) -> Stack | None:
    """Return the draft models of an arm, or None where the databases alone draft or the program decides. Raises
    ArmError."""
    if name != "hsd" and not name.startswith((DRAFT, PLAN)):
        return None
    if not served.levels or not served.levels.sequences:
        raise ArmError(f"{served.name} has no draft model here: " + _why_none(served))
    names = served.levels.hierarchy.names
    if name.startswith(PLAN):
        return Stack(_some(served, retrieval=True), parse_plan(name.removeprefix(PLAN), names))
    try:
        return Stack(_some(served, None if name == "hsd" else [name.removeprefix(DRAFT)]))
    except KeyError as error:
        raise ArmError(f"no draft model is called {error}; there is {', '.join(names[:-1])}") from error


def _some(served: ServedModel, names: Sequence[str] | None = None, *, retrieval: bool = False) -> Levels:
    """Return some of the draft models, or all, as after loading, with databases or without. Raises KeyError."""
    assert served.levels
    levels, (*known, target) = served.levels, served.levels.hierarchy.names
    if unknown := [name for name in names or () if name not in known]:
        raise KeyError(unknown[0])
    kept = [level for level, name in enumerate(known) if names is None or name in names]
    models, priors = tuple(levels.models[level] for level in kept), levels.hierarchy.priors
    pairs = combinations(enumerate([*kept, len(known)]), 2)
    hierarchy = Hierarchy(
        [*(known[level] for level in kept), target],
        [*(one.latency for one in models), served.local.latency],
        {(low, high): priors[pair] for (low, a), (high, b) in pairs if (pair := (a, b)) in priors},
        retrieval=retrieval,
    )
    return replace(levels, models=models, hierarchy=hierarchy)


def _why_none(served: ServedModel) -> str:
    left_out = served.levels.left_out if served.levels else {}
    return "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "models.yaml names none"


# Which arms take part.


def parse_arms(text: str) -> list[str]:
    """Parse the names in "A,B,...", each once. Raises RequestError with the nearest names."""
    known = (*OWN, *PEERS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known and not name.startswith((DRAFT, PLAN)):
            raise unknown("arm", name, known)
    if not names:
        raise unknown("arm", "", known)
    return names
