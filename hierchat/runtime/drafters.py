"""The drafter that the program uses: one place for the page and for every measurement of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.kernel_arrays import CORPUS, SEED
from hierchat.drafting.proposer import JointDrafter, Proposer
from hierchat.drafting.source import Source
from hierchat.drafting.successors import Successors
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.engine.draft_model import CachedDraftModel, DraftedReply
from hierchat.engine.engine import TARGET, Step
from hierchat.hierarchy.hierarchical_drafter import HierarchicalDrafter
from hierchat.hierarchy.level import Ending
from hierchat.hierarchy.plan import Plan
from hierchat.models.progress import Progress, Report, silent
from hierchat.runtime.kernels import draft_once
from hierchat.runtime.levels import Levels
from hierchat.runtime.served_model import ServedModel
from hierchat.texts.build import Statistics
from hierchat.texts.corpora import SEED_NAME


@dataclass(slots=True)
class Memory:
    """What earlier replies of one user and model left behind: texts to draft from, and what was learned."""

    history: list[Source] = field(default_factory=lambda: [Source()])
    acceptance: Acceptance = field(default_factory=Acceptance)
    successors: Successors = field(default_factory=Successors)
    levels: dict[str, Acceptance] = field(default_factory=dict)
    """The same as `acceptance` for the databases below each draft model."""
    user: int | None = None
    """Whose it is; None where there is one user only."""


def default_drafter(
    served: ServedModel, memory: Memory, width: int | None = None, settings: GenerationSettings | None = None
) -> Drafter:
    """All databases that the program has: this conversation, the history, the statistics loaded with the model."""
    sources = all_sources(served, memory)
    return drafter_over(served, sources, memory.acceptance, width, memory.successors, settings)


def reply_drafter(
    served: ServedModel, memory: Memory, settings: GenerationSettings, stop: Event, width: int | None = None
) -> Proposer:
    """What drafts a reply: the databases, the draft models where there are any and no width is fixed, and what else
    the model has to draft with."""
    drafter: Drafter | HierarchicalDrafter
    databases = drafter = default_drafter(served, memory, width, settings)
    if not width and served.levels and served.levels.sequences:
        drafter = with_models(served, memory, settings, stop, served.levels)
        databases = drafter.retrieval or databases
    if not served.proposers:
        return drafter
    return JointDrafter(drafter, [make() for make in served.proposers], databases.cost)


def with_models(
    served: ServedModel,
    memory: Memory,
    settings: GenerationSettings,
    stop: Event,
    levels: Levels,
    plan: Plan | None = None,
    *,
    retrieval: bool = True,
) -> HierarchicalDrafter:
    """The hierarchy of `levels` for one reply; `plan` fixes what is otherwise chosen."""
    names, sources = levels.hierarchy.names, all_sources(served, memory) if retrieval else []
    originals = levels.originals or (None,) * len(levels.sequences)
    reply = DraftedReply(settings, stop, memory.user, levels.users)
    models = [
        CachedDraftModel(name, sequence, latency, reply, original)
        for name, sequence, latency, original in zip(
            names, levels.sequences, levels.latencies, originals, strict=False
        )
    ]
    retrieval_levels = [
        Drafter(
            sources, memory.levels.setdefault(name, Acceptance()), latency, None, memory.successors, settings
        )
        for name, latency in zip(names, levels.latencies, strict=False)
    ]
    above = default_drafter(served, memory, settings=settings) if retrieval else None
    stacked = list(zip(models, retrieval_levels, strict=True))
    return HierarchicalDrafter(levels.hierarchy, above, stacked, Ending(served.end_ids, stop), plan)


def all_sources(served: ServedModel, memory: Memory) -> list[Source]:
    """Every database but the context."""
    return [*memory.history, *statistics_sources(served.statistics)]


def drafter_over(
    served: ServedModel,
    sources: Sequence[Source],
    acceptance: Acceptance,
    width: int | None = None,
    successors: Successors | None = None,
    settings: GenerationSettings | None = None,
) -> Drafter:
    """The program's drafter over some of its databases. `width` fixes the positions per forward, drafts and one."""
    return Drafter(sources, acceptance, served.local.latency, width, successors, settings)


def warm_up(served: ServedModel) -> None:
    """One draft over a few tokens: what drafting and its databases compile at their first use is compiled then."""
    memory = Memory()
    memory.history[0].index.extend([[1, 2, 3, 1, 2], [2, 3]])
    memory.history[0].add([1, 2, 3])
    draft_once(default_drafter(served, memory))


def statistics_sources(statistics: Sequence[Statistics]) -> list[Source]:
    """The corpora as databases: what the model itself wrote has weights of its own."""
    return [
        Source(
            SEED if corpus.name == SEED_NAME else CORPUS,
            SuffixIndex.from_sorted(corpus.tokens, corpus.order),
            title_at=corpus.title_at,
        )
        for corpus in statistics
    ]


# Which of all that can draft does so: the choice that a comparison makes for each of its sides.


Databases = Literal["none", "chat", "replies", "texts"]
"""Each with those before it: this conversation, the user's earlier chats, texts that ship or were added."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What may draft. The default is all that there is."""

    databases: Databases = "texts"
    draft_models: bool = True
    """And what else the model brings beside the databases."""

    @property
    def nothing(self) -> bool:
        """Plain decoding."""
        return self.databases == "none" and not self.draft_models


ALL = Drafting()


def chosen_drafter(
    served: ServedModel, memory: Memory, settings: GenerationSettings, stop: Event, drafting: Drafting
) -> Proposer | None:
    """A drafter of what was chosen; None for plain decoding."""
    if drafting == ALL:
        return reply_drafter(served, memory, settings, stop)
    if not drafting.draft_models:
        served = replace(served, levels=None, proposers=())
    if drafting.databases == "none":
        levels = served.levels
        if levels is None or not levels.sequences:
            return None
        alone = levels.only(levels.hierarchy.names[:-1])
        return with_models(served, memory, settings, stop, alone, retrieval=False)
    if served.levels and served.levels.sequences:
        # What is learned of plans belongs to all databases: fewer of them begin as after loading.
        names = served.levels.hierarchy.names[:-1]
        served = replace(served, levels=served.levels.only(names, retrieval=True))
    if drafting.databases == "chat":
        memory = replace(memory, history=[], successors=Successors())
    if drafting.databases != "texts":
        served = replace(served, statistics=())
    return reply_drafter(served, memory, settings, stop)


def apart(memory: Memory) -> Memory:
    """The same memory, but what is learned from now on goes into copies."""
    return replace(
        memory,
        acceptance=Acceptance.from_bytes(memory.acceptance.to_bytes()),
        successors=Successors.from_bytes(memory.successors.to_bytes()),
        levels={name: Acceptance.from_bytes(learned.to_bytes()) for name, learned in memory.levels.items()},
    )


# The steps of a recorded reply without a model: drafts that match what was written are accepted.


def steps(
    drafter: Proposer | None,
    prompt: Sequence[int],
    reply: Sequence[int],
    top: NDArray[np.int32] | None = None,
) -> Iterator[Step]:
    """As the engine would take them. `top` [reply, k]: the target's likeliest tokens where it chose each token, for a
    drafter that asks for them. `draft_ms` is what proposing and observing took of this thread's time."""
    at = 0
    if drafter:
        drafter.begin(prompt)
    while at < len(reply):
        began = time.thread_time()
        tree = drafter.propose() if drafter else None
        took = time.thread_time() - began
        kept, sources = 1, [TARGET]
        if tree:
            nodes: dict[tuple[int, int], int] = {}
            for node, pair in enumerate(zip(tree.parents, tree.tokens, strict=True)):
                nodes.setdefault(pair, node)
            above, sources = -1, []
            for token in reply[at:]:
                above = nodes.get((above, token), -2)
                sources.append(tree.sources[above] if above >= 0 else TARGET)
                if above < 0:
                    break
            kept = len(sources)
        tokens = reply[at : at + kept]
        if drafter:
            seen = None if top is None or not drafter.top else _widened(top[at : at + kept], drafter.top)
            began = time.thread_time()
            drafter.observe(tokens, seen)
            took += time.thread_time() - began
        at += kept
        yield Step(
            tokens=tuple(tokens),
            sources=tuple(sources),
            proposed=MappingProxyType(dict(Counter(tree.sources if tree else ()))),
            width=1 + (len(tree) if tree else 0),
            draft_ms=took * 1e3,
        )


def _widened(top: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """The first `count` of each row, -1 where fewer were recorded."""
    wide = np.full((len(top), count), -1, np.int32)
    known = min(count, top.shape[1])
    wide[:, :known] = top[:, :known]
    return wide


# What texts would bring, before they are added: the last replies drafted again, with and without them.


REPLIES, TOKENS = 20, 4_000
"""Of the last replies at most so many are tried, and of them so many tokens."""
FEWEST = 500
"""Tokens of replies below which nothing is told."""
Written = tuple[Sequence[int], Sequence[int]]
"""A prompt, and the reply to it."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens per forward over some replies, drafted from what drafts now and with the new texts beside it. Earlier
    replies do not draft here: those that are tried would be found among them."""

    replies: int
    before: float
    after: float


def gain(
    served: ServedModel, written: Iterable[Written], texts: Iterable[Sequence[int]], report: Report = silent
) -> Gain | None:
    """Of these texts, tokenised. None where drafting is not possible, or too little was written to tell. `report` is
    called between its parts."""
    tried = list(_first(written)) if served.drafts else []
    if sum(len(reply) for _, reply in tried) < FEWEST:
        return None
    new = Source.of(texts, CORPUS)
    new.index.wait()
    now = statistics_sources(served.statistics)
    before, after = (_tokens_per_forward(served, sources, tried, report) for sources in (now, [*now, new]))
    return Gain(len(tried), before, after)


def _first(written: Iterable[Written]) -> Iterator[Written]:
    total = 0
    for prompt, reply in written:
        if total >= TOKENS:
            return
        total += len(reply)
        yield prompt, reply


def _tokens_per_forward(
    served: ServedModel, sources: Sequence[Source], tried: Sequence[Written], report: Report
) -> float:
    acceptance = Acceptance()
    forwards = 0
    for prompt, reply in tried:
        report(Progress("reading", 0, None, ""))
        forwards += sum(1 for _ in steps(drafter_over(served, sources, acceptance), prompt, reply))
    return sum(len(reply) for _, reply in tried) / forwards
