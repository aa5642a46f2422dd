"""Find the best plan: which levels take part and how long their drafts are, by the latency expected of each plan."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hierchat.hierarchy import kernel

Provenance = Literal["kept", "corrected", "bonus"]
"""How a token came about: see TokenAcceptance."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Levels that take part, from the lowest to the target, and how much each but the target passes up."""

    levels: tuple[int, ...]
    lengths: tuple[int, ...] = ()
    """Tokens that levels[0], levels[1], ... write at least before the level above looks at them."""
    retrieval: bool = False
    """Whether the databases draft for the lowest level."""


@dataclass(frozen=True, slots=True)
class TokenAcceptance:
    """Acceptance rates of a level's tokens by a level above, where all before were accepted: by how they came about."""

    kept: float
    """Rate of tokens that a level below drafted and this one kept."""
    corrected: float
    """Rate of tokens in place of a wrong draft."""
    bonus: float
    """Rate of tokens behind a draft that was right to its end, or behind none."""
    overall: float


@dataclass(frozen=True, slots=True)
class Yield:
    """Distribution of the tokens of one level's forward: so many kept drafts and one more token."""

    corrected: NDArray[np.float64]
    """[most + 1]: probability that a draft was wrong after so many that were kept."""
    bonus: NDArray[np.float64]
    """[most + 1]: probability that all drafts were kept, so many."""

    @property
    def tokens(self) -> float:
        return float((self.corrected + self.bonus) @ np.arange(1, len(self.bonus) + 1))


ALONE = Yield(np.zeros(1), np.ones(1))
"""A forward without drafts."""


@dataclass(frozen=True, slots=True)
class RetrievalLevel:
    """Level with the databases that draft for it as many tokens as pay, measured as a whole."""

    brings: Yield
    ms: float
    """Milliseconds of a step: drafting and the forward."""


@dataclass(frozen=True, slots=True)
class LevelStack:
    """Costs and acceptance rates of all levels, from the smallest draft model to the target, which is the last."""

    forward_ms: Sequence[Sequence[float]]
    """[level][positions - 1]: milliseconds of a forward. Beyond the last width each row costs what the last did."""
    acceptance: Sequence[Sequence[TokenAcceptance]]
    """[level below][level above]."""
    retrieval_levels: Sequence[RetrievalLevel | None] = ()
    """[level]: None, or an empty sequence, where the databases do not draft."""

    def __len__(self) -> int:
        return len(self.forward_ms)

    def cost(self, level: int, positions: int) -> float:
        """Return the milliseconds of a level's forward over so many positions."""
        known = self.forward_ms[level]
        if positions <= len(known):
            return known[positions - 1]
        row = known[-1] - known[-2] if len(known) > 1 else known[-1]
        return known[-1] + (positions - len(known)) * row

    def retrieval_level(self, level: int, retrieval: bool) -> RetrievalLevel:
        """Return the lowest level of a plan, with the databases or without. Raises ValueError if none draft for it."""
        if not retrieval:
            return RetrievalLevel(ALONE, self.cost(level, 1))
        found = self.retrieval_levels[level] if level < len(self.retrieval_levels) else None
        if found is None:
            raise ValueError(f"No database drafts for level {level}.")
        return found


def by_renewal(stack: LevelStack, plan: Plan) -> float:
    """Compute the time per token of the target with all below it, exact if tokens are accepted independently.
    A draft consists of runs of kept drafts, each with a token of the level's own after it."""
    lowest = stack.retrieval_level(plan.levels[0], plan.retrieval)
    run, ms = lowest.brings, lowest.ms
    for below, above, length in zip(plan.levels, plan.levels[1:], plan.lengths, strict=False):
        accepted = stack.acceptance[below][above]
        # By Wald: how many forwards make a draft does not depend on what is still to come.
        forwards, sizes, corrected, bonus = pass_up(
            run.corrected, run.bonus, length, accepted.kept, accepted.corrected, accepted.bonus
        )
        costs = np.array([stack.cost(above, length + more + 1) for more in range(len(sizes))])
        ms = forwards * ms + float(sizes @ costs)
        run = Yield(corrected, bonus)
    return ms / run.tokens


MOST = 16
"""Tokens of a draft, at most."""
FEW = 4
"""Plans that are compared by the exact form; also kept for each level."""


@dataclass(frozen=True, slots=True)
class Found:
    """Plan, and the milliseconds per token expected of it."""

    plan: Plan
    ms: float


def best_plan(stack: LevelStack, most: int = MOST) -> Found:
    """Find the plan with the least expected latency, by the exact form; drafts of at most `most` tokens."""
    scored = [_moved(stack, found.plan, most) for found in shortest_paths(stack, most)]
    return min(scored, key=lambda found: found.ms)


def shortest_paths(stack: LevelStack, most: int = MOST) -> list[Found]:
    """Find the best few plans, best first, by L_j = (T L_i + c_j(T + 1)) / g(a_ij, T), as if drafts had exactly the
    length asked for. g = 1 + a + ... + a^T is the expected number of tokens of a forward over T drafts. L_j grows
    with L_i, so the best plans are made of best plans of lower levels: a shortest path."""
    sizes = np.arange(1, most + 1)
    best: list[list[Found]] = []
    for above in range(len(stack)):
        alone = [Plan((above,))]
        if above < len(stack.retrieval_levels) and stack.retrieval_levels[above] is not None:
            alone.append(Plan((above,), (), retrieval=True))
        found = [Found(plan, by_renewal(stack, plan)) for plan in alone]
        costs = np.array([stack.cost(above, size + 1) for size in range(1, most + 1)])
        for below in range(above):
            accepted = stack.acceptance[below][above].overall
            gains = np.cumsum(accepted ** np.arange(most + 1))[1:]
            for path in best[below]:
                latencies = (sizes * path.ms + costs) / gains
                at = int(latencies.argmin())
                plan = Plan(
                    (*path.plan.levels, above), (*path.plan.lengths, int(sizes[at])), path.plan.retrieval
                )
                found.append(Found(plan, float(latencies[at])))
        best.append(heapq.nsmallest(FEW, found, key=lambda one: one.ms))
    return best[-1]


def _moved(stack: LevelStack, plan: Plan, most: int) -> Found:
    """Change draft lengths one at a time while that makes the exact form faster."""
    now = Found(plan, by_renewal(stack, plan))
    while True:
        lengths = now.plan.lengths
        others = [
            replace(now.plan, lengths=(*lengths[:at], other, *lengths[at + 1 :]))
            for at, length in enumerate(lengths)
            for other in (length - 1, length + 1)
            if 1 <= other <= most
        ]
        found = [Found(other, by_renewal(stack, other)) for other in others]
        better = min(found, key=lambda one: one.ms, default=now)
        if better.ms >= now.ms:
            return now
        now = better


@kernel
def pass_up(corrected, bonus, least, if_kept, if_corrected, if_bonus):  # type: ignore[no-untyped-def]
    """Follow a draft of at least `least` tokens, made of forwards (Yield), to a level that accepts tokens by how they
    came about. Returns the forwards that it takes on average; the chances of its sizes least, least + 1, ... [longest
    run]; and the run of the level above, (corrected, bonus) [largest size + 1]."""
    longest = len(corrected)
    most = least - 1 + longest
    reached = np.zeros(most + 1)  # that the draft is so long after some forward
    agreed = np.zeros(most + 1)  # the same, and all of it is accepted above
    wrong = np.zeros(most + 1)  # that so many are accepted, and the next is not
    reached[0] = agreed[0] = 1.0
    forwards = 0.0
    for size in range(least):
        forwards += reached[size]
        accepted = agreed[size]  # and `kept` more, so far
        remaining = 1.0
        for kept in range(longest):
            ends = corrected[kept] + bonus[kept]
            end = size + kept + 1
            reached[end] += reached[size] * ends
            good = corrected[kept] * if_corrected + bonus[kept] * if_bonus
            agreed[end] += accepted * good
            wrong[end - 1] += accepted * (ends - good)
            remaining -= ends
            if kept + 1 < longest:
                wrong[end - 1] += accepted * remaining * (1.0 - if_kept)
            accepted *= if_kept
    right = np.zeros(most + 1)
    right[least:] = agreed[least:]
    return forwards, reached[least:].copy(), wrong, right
