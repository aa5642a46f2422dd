"""The drafter that the program uses: one place for the page and for every measurement of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from hierchat.config import GenerationSettings
from hierchat.corpus.format import Statistics
from hierchat.corpus.seed import SEED_NAME
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.layout import CORPUS, SEED
from hierchat.drafting.joint import JointDrafter
from hierchat.drafting.proposer import Proposer
from hierchat.drafting.source import Source
from hierchat.drafting.successors import Successors
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.engine.draft_model import CachedDraftModel
from hierchat.hierarchy.drafter import HierarchicalDrafter
from hierchat.hierarchy.plan import Plan
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.kernels import draft_once
from hierchat.runtime.levels import Levels


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
    hosted: Hosted, memory: Memory, width: int | None = None, settings: GenerationSettings | None = None
) -> Drafter:
    """All databases that the program has: this conversation, the history, the statistics loaded with the model."""
    sources = all_sources(hosted, memory)
    return drafter_over(hosted, sources, memory.acceptance, width, memory.successors, settings)


def reply_drafter(
    hosted: Hosted, memory: Memory, settings: GenerationSettings, stop: Event, width: int | None = None
) -> Proposer:
    """What drafts a reply: the databases, the draft models where there are any and no width is fixed, and what else
    the model has to draft with."""
    drafter: Drafter | HierarchicalDrafter
    databases = drafter = default_drafter(hosted, memory, width, settings)
    if not width and hosted.levels and hosted.levels.sequences:
        drafter = with_models(hosted, memory, settings, stop, hosted.levels)
        databases = drafter.retrieval or databases
    if not hosted.proposers:
        return drafter
    return JointDrafter(drafter, [make() for make in hosted.proposers], databases.cost)


def with_models(
    hosted: Hosted,
    memory: Memory,
    settings: GenerationSettings,
    stop: Event,
    levels: Levels,
    plan: Plan | None = None,
    *,
    retrieval: bool = True,
) -> HierarchicalDrafter:
    """The hierarchy of `levels` for one reply; `plan` fixes what is otherwise chosen."""
    names, sources = levels.hierarchy.names, all_sources(hosted, memory) if retrieval else []
    originals = levels.originals or (None,) * len(levels.sequences)
    models = [
        CachedDraftModel(
            name, sequence, latency, settings, stop, original, user=memory.user, users=levels.users
        )
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
    above = default_drafter(hosted, memory, settings=settings) if retrieval else None
    return HierarchicalDrafter(levels.hierarchy, above, models, retrieval_levels, hosted.end_ids, stop, plan)


def all_sources(hosted: Hosted, memory: Memory) -> list[Source]:
    """Every database but the context."""
    return [*memory.history, *statistics_sources(hosted.statistics)]


def drafter_over(
    hosted: Hosted,
    sources: Sequence[Source],
    acceptance: Acceptance,
    width: int | None = None,
    successors: Successors | None = None,
    settings: GenerationSettings | None = None,
) -> Drafter:
    """The program's drafter over some of its databases. `width` fixes the positions per forward, drafts and one."""
    return Drafter(sources, acceptance, hosted.local.latency, width, successors, settings)


def warm_up(hosted: Hosted) -> None:
    """One draft over a few tokens: what drafting and its databases compile at their first use is compiled then."""
    memory = Memory()
    memory.history[0].index.extend([[1, 2, 3, 1, 2], [2, 3]])
    memory.history[0].add([1, 2, 3])
    draft_once(default_drafter(hosted, memory))


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
