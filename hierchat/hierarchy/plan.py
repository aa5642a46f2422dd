"""Plans: which levels take part and how long their drafts are, the latency expected of each, and the best one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierchat.hierarchy.level import pass_up


@dataclass(frozen=True, slots=True)
class Plan:
    """Names the levels that take part, from the lowest to the target, and how much each but the target passes up."""

    levels: tuple[int, ...]
    lengths: tuple[int, ...] = ()
    """Tokens that levels[0], levels[1], ... write at least before the level above looks at them."""
    retrieval: bool = False
    """Whether the databases draft for the lowest level."""


@dataclass(frozen=True, slots=True)
class TokenAcceptance:
    """Acceptance rates of a level's tokens by a level above, where all before were accepted: by how they came about."""

    kept: float
    """Of tokens that a level below drafted and this one kept."""
    corrected: float
    """Of tokens in place of a wrong draft."""
    bonus: float
    """Of tokens behind a draft that was right to its end, or behind none."""
    overall: float

    @classmethod
    def of(cls, overall: float) -> TokenAcceptance:
        """Make all rates alike, where nothing more is known."""
        return cls(overall, overall, overall, overall)


@dataclass(frozen=True, slots=True)
class Yield:
    """Distribution of what one forward of a level brings: so many kept drafts and one more token."""

    corrected: NDArray[np.float64]
    """[most + 1]: probability that a draft was wrong after so many that were kept."""
    bonus: NDArray[np.float64]
    """[most + 1]: probability that all drafts were kept, so many."""

    @property
    def tokens(self) -> float:
        """Tokens on average."""
        return float((self.corrected + self.bonus) @ np.arange(1, len(self.bonus) + 1))


ALONE = Yield(np.zeros(1), np.ones(1))
"""A forward without drafts."""


@dataclass(frozen=True, slots=True)
class RetrievalLevel:
    """A level with the databases that draft for it as many tokens as pay, measured as a whole."""

    brings: Yield
    ms: float
    """Milliseconds of a step: drafting and the forward."""


@dataclass(frozen=True, slots=True)
class LevelStack:
    """Costs and acceptance rates of all levels, from the smallest draft model to the target, which is the last."""

    forward_ms: Sequence[Sequence[float]]
    """[level][positions - 1]: milliseconds of a forward. Beyond the last width, each row costs what the last one
    did."""
    acceptance: Sequence[Sequence[TokenAcceptance]]
    """[level below][level above]."""
    retrieval_levels: Sequence[RetrievalLevel | None] = ()
    """[level]: None, or an empty sequence, where the databases do not draft."""

    def __len__(self) -> int:
        return len(self.forward_ms)

    def cost(self, level: int, positions: int) -> float:
        """Return the milliseconds of a forward of a level."""
        known = self.forward_ms[level]
        if positions <= len(known):
            return known[positions - 1]
        row = known[-1] - known[-2] if len(known) > 1 else known[-1]
        return known[-1] + (positions - len(known)) * row

    def retrieval_level(self, level: int, retrieval: bool) -> RetrievalLevel:
        """Return the lowest level of a plan, with the databases or without. Raises ValueError where none draft for
        it."""
        if not retrieval:
            return RetrievalLevel(ALONE, self.cost(level, 1))
        found = self.retrieval_levels[level] if level < len(self.retrieval_levels) else None
        if found is None:
            raise ValueError(f"No database drafts for level {level}.")
        return found


# Expected latency of a plan, in milliseconds per token. Two forms. `by_recurrence`: a level's latency from
# that of the level below, as if drafts were exactly as long as asked for. `by_renewal`: exact, where tokens
# are accepted independently given how they came about. A draft ends with the forward that makes it long
# enough, so its length is random. Its tokens are runs of kept drafts with a token of the level's own behind
# each.


def gain(acceptance: float, drafts: int) -> float:
    """Compute the tokens that a forward over `drafts` drafts brings on average: (1 - a^(T + 1)) / (1 - a)."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return float((1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance))


def by_recurrence(stack: LevelStack, plan: Plan) -> float:
    """Compute L_j = (T L_i + c_j(T + 1)) / g(a_ij, T), from the lowest level up."""
    lowest = stack.retrieval_level(plan.levels[0], plan.retrieval)
    latency = lowest.ms / lowest.brings.tokens
    for below, above, length in zip(plan.levels, plan.levels[1:], plan.lengths, strict=False):
        accepted = stack.acceptance[below][above].overall
        latency = (length * latency + stack.cost(above, length + 1)) / gain(accepted, length)
    return latency


def by_renewal(stack: LevelStack, plan: Plan) -> float:
    """Compute the time per forward of the target, with all that lies below it, over the tokens that it brings."""
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


# The plan with the least expected latency. A level's latency is affine and increasing in that of the level
# below it. So the best plans of a level are made of best plans of lower levels: a shortest path in a graph
# whose edges have a gain and a cost. The few best by the recurrence are compared by the exact form, which
# also moves their draft lengths.


MOST = 16
"""Tokens of a draft, at most."""
FEW = 4
"""Plans that are compared by the exact form; also kept for each level."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, and the milliseconds per token expected of it."""

    plan: Plan
    ms: float


def best_plan(stack: LevelStack, most: int = MOST) -> Found:
    """Find the plan with the least expected latency, by the exact form; drafts of at most `most` tokens."""
    scored = [_moved(stack, found.plan, most) for found in shortest_paths(stack, most)]
    return min(scored, key=lambda found: found.ms)


def shortest_paths(stack: LevelStack, most: int = MOST, few: int = FEW) -> list[Found]:
    """Find the best few plans by the recurrence, of different levels each; the first is the best of all."""
    sizes = np.arange(1, most + 1)
    best: list[list[Found]] = []
    for above in range(len(stack)):
        found = list(_without_drafts_of_models(stack, above))
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
        best.append(heapq.nsmallest(few, found, key=lambda one: one.ms))
    return best[-1]


def _without_drafts_of_models(stack: LevelStack, level: int) -> Iterator[Found]:
    """List plans in which no draft model stands below a level, with the databases and without."""
    alone = Plan((level,))
    yield Found(alone, by_recurrence(stack, alone))
    if level < len(stack.retrieval_levels) and stack.retrieval_levels[level] is not None:
        with_retrieval = Plan((level,), (), retrieval=True)
        yield Found(with_retrieval, by_recurrence(stack, with_retrieval))


def _moved(stack: LevelStack, plan: Plan, most: int) -> Found:
    """Change draft lengths, one at a time, as long as that makes the exact form faster."""
    now = Found(plan, by_renewal(stack, plan))
    while True:
        better = min(
            (Found(other, by_renewal(stack, other)) for other in _neighbours(now.plan, most)),
            key=lambda found: found.ms,
            default=now,
        )
        if better.ms >= now.ms:
            return now
        now = better


def _neighbours(plan: Plan, most: int) -> Iterable[Plan]:
    for at, length in enumerate(plan.lengths):
        for other in (length - 1, length + 1):
            if 1 <= other <= most:
                yield replace(plan, lengths=(*plan.lengths[:at], other, *plan.lengths[at + 1 :]))
