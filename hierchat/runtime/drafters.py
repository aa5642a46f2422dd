"""The drafters of replies, as the program and every measurement use them, and what new texts would bring."""

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
from hierchat.drafting.proposer import JointDrafter, Proposer, path_of
from hierchat.drafting.source import Source
from hierchat.drafting.successors import Successors
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.engine.draft_model import CachedDraftModel, DraftedReply
from hierchat.engine.engine import TARGET, Step
from hierchat.hierarchy.hierarchical_drafter import Ending, HierarchicalDrafter
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
    """Acceptance of the databases below each draft model."""
    user: int | None = None
    """Whose it is; None where there is one user only."""


def default_drafter(
    served: ServedModel, memory: Memory, width: int | None = None, settings: GenerationSettings | None = None
) -> Drafter:
    """Make a drafter over all databases: this conversation, the history, the statistics loaded with the model."""
    sources, latency = all_sources(served, memory), served.local.latency
    return Drafter(sources, memory.acceptance, latency, width, memory.successors, settings)


def reply_drafter(
    served: ServedModel, memory: Memory, settings: GenerationSettings, stop: Event, width: int | None = None
) -> Proposer:
    """Make what drafts a reply: the databases, the draft models where there are any and no width is fixed, and the
    model's other proposers."""
    drafter: Drafter | HierarchicalDrafter
    databases = drafter = default_drafter(served, memory, width, settings)
    if not width and served.levels and served.levels.models:
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
    """Make the hierarchy of `levels` for one reply; `plan` fixes what is otherwise chosen."""
    sources = all_sources(served, memory) if retrieval else []
    reply = DraftedReply(settings, stop, memory.user, levels.users)
    stacked = []
    for one in levels.models:
        model = CachedDraftModel(one.name, one.sequence, one.latency, reply, one.original)
        acceptance = memory.levels.setdefault(one.name, Acceptance())
        below = Drafter(sources, acceptance, one.latency, None, memory.successors, settings)
        stacked.append((model, below))
    above = default_drafter(served, memory, settings=settings) if retrieval else None
    return HierarchicalDrafter(levels.hierarchy, above, stacked, Ending(served.end_ids, stop), plan)


def all_sources(served: ServedModel, memory: Memory) -> list[Source]:
    """Return every database but the context."""
    return [*memory.history, *statistics_sources(served.statistics)]


def warm_up(served: ServedModel) -> None:
    """Draft once over a few tokens: what drafting and its databases compile at their first use is compiled then."""
    memory = Memory()
    memory.history[0].index.extend([[1, 2, 3, 1, 2], [2, 3]])
    memory.history[0].add([1, 2, 3])
    draft_once(default_drafter(served, memory))


def statistics_sources(statistics: Sequence[Statistics]) -> list[Source]:
    """Make databases of the corpora: what the model itself wrote has weights of its own."""
    return [
        Source(
            SEED if corpus.name == SEED_NAME else CORPUS,
            SuffixIndex.from_sorted(corpus.tokens, corpus.order),
            title_at=corpus.title_at,
        )
        for corpus in statistics
    ]


Databases = Literal["none", "chat", "replies", "texts"]
"""Each with those before it: this conversation, the user's earlier chats, texts that ship or were added."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What may draft, as a comparison chooses for each of its sides. The default is all that there is."""

    databases: Databases = "texts"
    draft_models: bool = True
    """And what else the model brings beside the databases."""

    @property
    def nothing(self) -> bool:
        return self.databases == "none" and not self.draft_models


ALL = Drafting()


def chosen_drafter(
    served: ServedModel, memory: Memory, settings: GenerationSettings, stop: Event, drafting: Drafting
) -> Proposer | None:
    """Make a drafter of what was chosen; None for plain decoding."""
    if drafting == ALL:
        return reply_drafter(served, memory, settings, stop)
    if not drafting.draft_models:
        served = replace(served, levels=None, proposers=())
    if drafting.databases == "none":
        if served.levels is None or not served.levels.models:
            return None
        return with_models(served, memory, settings, stop, served.levels.only(), retrieval=False)
    if served.levels and served.levels.models:
        # What is learned of plans belongs to all databases: fewer of them begin as after loading.
        served = replace(served, levels=served.levels.only(retrieval=True))
    if drafting.databases == "chat":
        memory = replace(memory, history=[], successors=Successors())
    if drafting.databases != "texts":
        served = replace(served, statistics=())
    return reply_drafter(served, memory, settings, stop)


def apart(memory: Memory) -> Memory:
    """Copy what a memory has learned, so that what is learned from now on does not enter it."""
    return replace(
        memory,
        acceptance=Acceptance.from_bytes(memory.acceptance.to_bytes()),
        successors=Successors.from_bytes(memory.successors.to_bytes()),
        levels={name: Acceptance.from_bytes(learned.to_bytes()) for name, learned in memory.levels.items()},
    )


def steps(
    drafter: Proposer | None,
    prompt: Sequence[int],
    reply: Sequence[int],
    top: NDArray[np.int32] | None = None,
) -> Iterator[Step]:
    """Replay a recorded reply without a model, in the steps that the engine would take. `top` [reply, k]: the target's
    likeliest tokens where it chose each token. `draft_ms` is what proposing and observing took of this thread's
    time."""
    at = 0
    if drafter:
        drafter.begin(prompt)
    while at < len(reply):
        began = time.thread_time()
        tree = drafter.propose() if drafter else None
        took = time.thread_time() - began
        path = path_of(tree, reply[at:]) if tree else []
        tokens = reply[at : at + len(path) + 1]
        sources = [tree.sources[node] for node in path] if tree else []
        sources += [TARGET] * (len(tokens) - len(path))
        if drafter:
            seen = None
            if top is not None and drafter.top:  # -1 where fewer were recorded
                seen = np.full((len(tokens), drafter.top), -1, np.int32)
                known = top[at : at + len(tokens), : drafter.top]
                seen[:, : known.shape[1]] = known
            began = time.thread_time()
            drafter.observe(tokens, seen)
            took += time.thread_time() - began
        at += len(tokens)
        yield Step(
            tokens=tuple(tokens),
            sources=tuple(sources),
            proposed=MappingProxyType(dict(Counter(tree.sources if tree else ()))),
            width=1 + (len(tree) if tree else 0),
            draft_ms=took * 1e3,
        )


REPLIES, TOKENS = 20, 4_000
"""The last replies that are tried at most, and tokens of them."""
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
    """Draft the last replies again, with these tokenised texts and without. None where drafting is not possible, or too
    little was written to tell. `report` is called between its parts."""
    tried: list[Written] = []
    tokens = 0
    for prompt, reply in written if served.drafts else ():
        tried.append((prompt, reply))
        if (tokens := tokens + len(reply)) >= TOKENS:
            break
    if tokens < FEWEST:
        return None
    new = Source.of(texts, CORPUS)
    new.index.wait()
    found, now = [], statistics_sources(served.statistics)
    for sources in (now, [*now, new]):
        acceptance, forwards = Acceptance(), 0
        for prompt, reply in tried:
            report(Progress("reading", 0, None, ""))
            drafter = Drafter(sources, acceptance, served.local.latency)
            forwards += sum(1 for _ in steps(drafter, prompt, reply))
        found.append(tokens / forwards)
    return Gain(len(tried), *found)
