"""The drafter that the program uses: one place for the page and for every measurement of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hierchat.chat.host import Hosted
from hierchat.corpus.format import Statistics
from hierchat.corpus.seed import SEED_NAME
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.layout import CORPUS, SEED
from hierchat.drafting.source import Source
from hierchat.drafting.successors import TOP, Successors
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.engine.sampling.top import top_tokens


@dataclass(slots=True)
class Memory:
    """What earlier replies of one user and model left behind: texts to draft from, and what was learned."""

    history: list[Source] = field(default_factory=lambda: [Source()])
    acceptance: Acceptance = field(default_factory=Acceptance)
    successors: Successors = field(default_factory=Successors)


def default_drafter(hosted: Hosted, memory: Memory, width: int | None = None) -> Drafter:
    """All databases that the program has: this conversation, the history, the statistics loaded with the model."""
    sources = [*memory.history, *statistics_sources(hosted.statistics)]
    return drafter_over(hosted, sources, memory.acceptance, width, memory.successors)


def drafter_over(
    hosted: Hosted,
    sources: Sequence[Source],
    acceptance: Acceptance,
    width: int | None = None,
    successors: Successors | None = None,
) -> Drafter:
    """The program's drafter over some of its databases. `width` fixes the positions per forward, drafts and one."""
    return Drafter(sources, acceptance, hosted.engine.latency, width, successors)


def warm_up(hosted: Hosted) -> None:
    """One draft over a few tokens: what drafting and its databases compile at their first use is compiled then."""
    memory = Memory()
    memory.history[0].index.extend([[1, 2, 3, 1, 2], [2, 3]])
    memory.history[0].add([1, 2, 3])
    drafter = default_drafter(hosted, memory)
    drafter.begin([1, 2, 3, 1, 2])
    drafter.propose()
    top = top_tokens(np.zeros(2 * TOP, np.float32), TOP)
    drafter.observe([3, 1], np.array([top, top]))


def statistics_sources(statistics: Sequence[Statistics]) -> list[Source]:
    """The corpora as databases: what the model itself wrote has weights of its own."""
    return [
        Source(
            SEED if corpus.name == SEED_NAME else CORPUS,
            SuffixIndex.from_sorted(corpus.tokens, corpus.order),
        )
        for corpus in statistics
    ]
