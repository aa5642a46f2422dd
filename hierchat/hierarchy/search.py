"""The plan with the least expected latency.

A level's latency is affine and increasing in that of the level below it. So the best plans of a level are made of best
plans of lower levels: a shortest path in a graph whose edges have a gain and a cost. The few best by the recurrence are
compared by the exact form, which also moves their draft lengths.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hierchat.hierarchy.expected import by_recurrence, by_renewal
from hierchat.hierarchy.plan import Ladder, Plan

MOST = 16
"""Tokens of a draft, at most."""
FEW = 4
"""Plans that are compared by the exact form; also kept for each level."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, and the milliseconds per token that are expected of it."""

    plan: Plan
    ms: float


def best_plan(ladder: Ladder, most: int = MOST) -> Found:
    """The plan with the least expected latency, by the exact form; drafts of at most `most` tokens."""
    scored = [_moved(ladder, found.plan, most) for found in shortest_paths(ladder, most)]
    return min(scored, key=lambda found: found.ms)


def shortest_paths(ladder: Ladder, most: int = MOST, few: int = FEW) -> list[Found]:
    """The best few plans by the recurrence, of different levels each; the first is the best of all."""
    sizes = np.arange(1, most + 1)
    best: list[list[Found]] = []
    for above in range(len(ladder)):
        found = list(_without_drafts_of_models(ladder, above))
        costs = np.array([ladder.cost(above, size + 1) for size in range(1, most + 1)])
        for below in range(above):
            accepted = ladder.acceptance[below][above].overall
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


def _without_drafts_of_models(ladder: Ladder, level: int) -> Iterator[Found]:
    """Plans in which nothing but the databases, or nothing at all, stands below a level."""
    alone = Plan((level,))
    yield Found(alone, by_recurrence(ladder, alone))
    if level < len(ladder.retrieval_levels) and ladder.retrieval_levels[level] is not None:
        with_retrieval = Plan((level,), (), retrieval=True)
        yield Found(with_retrieval, by_recurrence(ladder, with_retrieval))


def _moved(ladder: Ladder, plan: Plan, most: int) -> Found:
    """The plan after every change of a draft length that makes the exact form faster, one change at a time."""
    now = Found(plan, by_renewal(ladder, plan))
    while True:
        better = min(
            (Found(other, by_renewal(ladder, other)) for other in _neighbours(now.plan, most)),
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
