"""The drafter: asks its sources from highest to lowest locality and grows the tree that pays best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.price import Free, Latency, Price
from hierchat.drafting.source import Candidate, DraftSource
from hierchat.drafting.tree import DraftTree, Grown, grow

WIDTH = 12
"""Positions per forward where no costs are known."""


class Drafter:
    """Sources in order of temporal locality, highest first.

    The tree's size follows the costs in `latency` and what `acceptance` learned; keep the latter from reply to reply.
    `width` fixes the positions per forward instead: width - 1 drafts, whatever they cost.
    """

    top = 0

    def __init__(
        self,
        sources: Sequence[DraftSource],
        acceptance: Acceptance | None = None,
        latency: Latency | None = None,
        width: int | None = None,
    ) -> None:
        self.sources = list(sources)
        self.acceptance = acceptance or Acceptance()
        self.price = Price(latency if latency and not width else Free(width or WIDTH))
        self._context: list[int] = []
        self._grown = Grown()

    def begin(self, prompt: Sequence[int]) -> None:
        """A new reply starts after `prompt`."""
        self._context = list(prompt)
        self._grown = Grown()
        self.price.begin(len(prompt))
        for source in self.sources:
            source.begin(prompt)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        """These tokens were committed, in order: drafts that were accepted, and one that the target added."""
        self._grown.teach(self.acceptance, tokens)
        self.price.note(1 + len(self._grown.tree), len(tokens))
        self._grown = Grown()
        self._context.extend(tokens)
        for source in self.sources:
            source.observe(tokens)

    def propose(self, limit: int | None = None) -> DraftTree:
        """A tree of at most `limit` nodes that continues what was observed."""
        self.price.look(len(self._context))
        budget = self.price.most if limit is None else min(self.price.most, limit)
        if budget <= 0:
            return DraftTree()
        candidates: list[Candidate] = []
        for source in self.sources:
            candidates += source.propose(self._context, budget)
        self._grown = grow(candidates, self.acceptance, self.price, budget)
        return self._grown.tree
