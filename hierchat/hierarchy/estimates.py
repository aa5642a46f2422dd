"""What is learned of levels while they run; older steps count less and less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hierchat.hierarchy.level import Provenance
from hierchat.hierarchy.plan import RetrievalLevel, TokenAcceptance, Yield

KINDS: tuple[Provenance, ...] = ("kept", "corrected", "bonus")
FORGET = 1 / 1500
"""Part of what was seen of agreement that is forgotten with every token: draft lengths depend on small differences."""
FORGET_FORWARDS = 1 / 400
"""The same of forwards over what the databases draft."""
PRIOR_TOKENS = 24.0
"""Weight of the prior, in tokens."""
SHRINK = 12.0
"""Weight of the average over all kinds, in tokens of one kind."""
LONGEST = 32
"""Kept drafts of one forward, at most; more count as so many."""
CLIP = 2.0
"""Times the usual duration that a step counts as, at most."""
SOME = 40.0
"""Forwards after which a histogram stands for itself."""


class Agreement:
    """How often a level's tokens are what one above it chooses, by how they came about."""

    def __init__(self, prior: float) -> None:
        self._seen = np.full(len(KINDS), PRIOR_TOKENS / len(KINDS))
        self._right = prior * self._seen

    def note(self, kinds: Sequence[Provenance], accepted: int) -> None:
        """Of tokens of these kinds so many were accepted, and the next one, if there is one, was refused."""
        for number, kind in enumerate(kinds[: accepted + 1]):
            self._seen *= 1.0 - FORGET
            self._right *= 1.0 - FORGET
            at = KINDS.index(kind)
            self._seen[at] += 1.0
            self._right[at] += number < accepted

    def acceptance(self) -> TokenAcceptance:
        overall = float(self._right.sum() / self._seen.sum())
        kept, corrected, bonus = ((self._right + SHRINK * overall) / (self._seen + SHRINK)).tolist()
        return TokenAcceptance(kept, corrected, bonus, overall)

    def state(self) -> list[float]:
        return [*self._seen.tolist(), *self._right.tolist()]

    def restore(self, state: Sequence[float]) -> None:
        """Raises ValueError where that is damaged."""
        values = np.array(state, np.float64)
        if (
            values.shape != (6,)
            or not np.isfinite(values).all()
            or (values < 0).any()
            or values[:3].sum() <= 0
        ):
            raise ValueError("What was learned of draft models is damaged.")
        self._seen, self._right = values[:3].copy(), np.minimum(values[3:], values[:3])


class RetrievalEstimate:
    """A level with the databases below it: what its forwards bring, and take."""

    def __init__(self) -> None:
        self._corrected = np.zeros(LONGEST + 1)
        self._bonus = np.zeros(LONGEST + 1)
        self._ms = 0.0

    def note(self, kept: int, bonus: bool, ms: float) -> None:
        """A forward kept so many drafts; all of them, if its own token is a bonus."""
        for counts in (self._corrected, self._bonus):
            counts *= 1.0 - FORGET_FORWARDS
        (self._bonus if bonus else self._corrected)[min(kept, LONGEST)] += 1.0
        seen = self._corrected.sum() + self._bonus.sum()
        if seen > SOME:  # what takes far longer waited for another program
            ms = min(ms, CLIP * self._ms)
        self._ms += (ms - self._ms) / min(seen, 1 / FORGET_FORWARDS)

    def retrieval_level(self) -> RetrievalLevel | None:
        """None while too little was seen."""
        seen = self._corrected.sum() + self._bonus.sum()
        if seen < SOME:
            return None
        return RetrievalLevel(Yield(self._corrected / seen, self._bonus / seen), self._ms)

    def state(self) -> dict[str, Any]:
        return {"corrected": self._corrected.tolist(), "bonus": self._bonus.tolist(), "ms": self._ms}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError where that is damaged."""
        corrected, bonus = np.array(state["corrected"], np.float64), np.array(state["bonus"], np.float64)
        if corrected.shape != (LONGEST + 1,) or bonus.shape != (LONGEST + 1,):
            raise ValueError("What was learned of draft models is damaged.")
        if min(corrected.min(), bonus.min()) < 0 or not np.isfinite(
            corrected.sum() + bonus.sum() + state["ms"]
        ):
            raise ValueError("What was learned of draft models is damaged.")
        self._corrected, self._bonus, self._ms = corrected, bonus, float(state["ms"])


def likely_run(tokens: float) -> Yield:
    """A run that brings so many tokens on average, where nothing more is known: each draft is kept as often as the
    one before."""
    kept = 1.0 - 1.0 / max(tokens, 1.0)
    chances = (1.0 - kept) * kept ** np.arange(LONGEST + 1)
    return Yield(chances / chances.sum(), np.zeros(LONGEST + 1))
