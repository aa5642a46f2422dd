"""The search: against all plans there are, and what must be so in any case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hierchat.hierarchy.plan import (
    Ladder,
    TokenAcceptance,
    best_plan,
    by_recurrence,
    by_renewal,
    shortest_paths,
)

from .ladders import all_plans, flat, random_ladder

MOST = 5


def test_the_shortest_path_is_the_best_of_all_plans() -> None:
    rng = np.random.default_rng(7)
    for instance in range(300):
        ladder = random_ladder(
            rng, 2 + instance % 3, provenance=bool(instance % 2), retrieval_levels=instance % 5 == 0
        )
        found = shortest_paths(ladder, MOST)
        best = min(by_recurrence(ladder, plan) for plan in all_plans(ladder, MOST))
        assert found[0].ms == pytest.approx(best)
        assert by_recurrence(ladder, found[0].plan) == pytest.approx(best)
        assert len({(one.plan.levels, one.plan.retrieval) for one in found}) == len(found)


def test_the_best_plan_is_nearly_the_best_by_the_exact_form() -> None:
    rng = np.random.default_rng(8)
    ratios = []
    for instance in range(60):
        ladder = random_ladder(rng, 2 + instance % 3, provenance=True, retrieval_levels=instance % 2 == 0)
        found = best_plan(ladder, MOST)
        assert found.ms == pytest.approx(by_renewal(ladder, found.plan))
        ratios.append(found.ms / min(by_renewal(ladder, plan) for plan in all_plans(ladder, MOST)))
    assert max(ratios) < 1.03
    assert np.mean(ratios) < 1.002


def test_never_worse_than_plain_decoding() -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        ladder = random_ladder(rng, 4, provenance=True)
        assert best_plan(ladder).ms <= ladder.cost(3, 1)


def test_a_useless_level_is_never_chosen() -> None:
    rng = np.random.default_rng(10)
    for _ in range(60):
        ladder = random_ladder(rng, 4)
        useless = [list(row) for row in ladder.acceptance]
        useless[1] = [TokenAcceptance.of(0.0)] * 4
        assert 1 not in best_plan(replace(ladder, acceptance=useless)).plan.levels


def test_a_free_level_never_hurts() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        ladder = random_ladder(rng, 3)
        acceptance = [
            [TokenAcceptance.of(float(rng.uniform(0.0, 0.95))) for _ in range(4)],
            *([TokenAcceptance.of(0.0), *row] for row in ladder.acceptance),
        ]
        more = Ladder([[0.0, 0.0], *ladder.forward_ms], acceptance)
        assert shortest_paths(more)[0].ms <= shortest_paths(ladder)[0].ms + 1e-9
        assert best_plan(more).ms <= best_plan(ladder).ms * 1.001


def test_a_stack_pays_where_the_middle_level_is_cheap_in_width() -> None:
    """Retrieval, a draft, a target: the example of docs/architecture.md."""
    found = best_plan(flat([0.02, 2.0, 25.0], [0.35, 0.75]))
    assert found.plan.levels == (0, 1, 2)
    assert found.ms < 10.0
