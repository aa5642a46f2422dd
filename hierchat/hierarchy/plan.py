"""Arrangements of levels, and what is known of the levels that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Plan:
    """Which levels take part, from the lowest to the target, and how much each but the target passes up."""

    levels: tuple[int, ...]
    lengths: tuple[int, ...] = ()
    """Tokens that levels[0], levels[1], ... write at least before the level above looks at them."""
    retrieval: bool = False
    """Whether the databases draft for the lowest level."""


@dataclass(frozen=True, slots=True)
class TokenAcceptance:
    """How often a level's token is the choice of a level above, where all before it were: by how it came about."""

    kept: float
    """It was drafted by a level below, and kept."""
    corrected: float
    """It stands where a draft was wrong."""
    bonus: float
    """It follows a draft that was right to its end, or no draft at all."""
    overall: float

    @classmethod
    def of(cls, overall: float) -> TokenAcceptance:
        """Where nothing more is known."""
        return cls(overall, overall, overall, overall)


@dataclass(frozen=True, slots=True)
class Yield:
    """What one forward of a level brings: so many kept drafts and one more token. Chances by the number kept."""

    corrected: NDArray[np.float64]
    """[most + 1]: a draft was wrong after so many that were kept."""
    bonus: NDArray[np.float64]
    """[most + 1]: all drafts were kept, so many."""

    @property
    def tokens(self) -> float:
        """On average."""
        return float((self.corrected + self.bonus) @ np.arange(1, len(self.bonus) + 1))


ALONE = Yield(np.zeros(1), np.ones(1))
"""A forward without drafts."""


@dataclass(frozen=True, slots=True)
class RetrievalLevel:
    """A level with the databases below it, which draft as many tokens as pay: measured as a whole."""

    brings: Yield
    ms: float
    """Of a step: drafting and the forward."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """All levels, from the smallest draft model to the target, which is the last."""

    forward_ms: Sequence[Sequence[float]]
    """[level][positions - 1]: what a forward takes. Beyond the last width, rows go on to cost what the last one did."""
    acceptance: Sequence[Sequence[TokenAcceptance]]
    """[level below][level above]."""
    retrieval_levels: Sequence[RetrievalLevel | None] = ()
    """By level; None, or nothing at all, where the databases do not draft."""

    def __len__(self) -> int:
        return len(self.forward_ms)

    def cost(self, level: int, positions: int) -> float:
        """Milliseconds of a forward of a level."""
        known = self.forward_ms[level]
        if positions <= len(known):
            return known[positions - 1]
        row = known[-1] - known[-2] if len(known) > 1 else known[-1]
        return known[-1] + (positions - len(known)) * row

    def retrieval_level(self, level: int, retrieval: bool) -> RetrievalLevel:
        """What drafts for the lowest level of a plan. Raises ValueError where the databases do not."""
        if not retrieval:
            return RetrievalLevel(ALONE, self.cost(level, 1))
        found = self.retrieval_levels[level] if level < len(self.retrieval_levels) else None
        if found is None:
            raise ValueError(f"No database drafts for level {level}.")
        return found
