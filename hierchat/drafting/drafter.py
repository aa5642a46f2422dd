"""The drafter: asks its sources from highest to lowest locality and grows one tree."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.drafting.source import Candidate, DraftSource
from hierchat.drafting.tree import DraftTree, grow


class Drafter:
    """Sources in order of temporal locality, highest first, and a fixed budget of nodes per forward."""

    def __init__(self, sources: Sequence[DraftSource], budget: int = 11) -> None:
        self.sources = list(sources)
        self.budget = budget
        self._context: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """A new reply starts after `prompt`."""
        self._context = list(prompt)
        for source in self.sources:
            source.begin(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        """These tokens were committed, in order."""
        self._context.extend(tokens)
        for source in self.sources:
            source.observe(tokens)

    def propose(self, limit: int | None = None) -> DraftTree:
        """A tree of at most min(budget, limit) nodes that continues what was observed."""
        budget = self.budget if limit is None else min(self.budget, limit)
        if budget <= 0:
            return DraftTree()
        candidates: list[Candidate] = []
        for source in self.sources:
            candidates += source.propose(self._context, budget)
        return grow(candidates, budget)
