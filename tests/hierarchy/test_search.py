"""The search: against all plans there are, and what must be so in any case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hierchat.hierarchy.plan import (
    LevelStack,
    TokenAcceptance,
    best_plan,
    by_recurrence,
    by_renewal,
    shortest_paths,
)

from .simulated import all_plans, flat, random_stack

MOST = 5


def test_the_shortest_path_is_the_best_of_all_plans() -> None:
    rng = np.random.default_rng(7)
    for instance in range(300):
        stack = random_stack(
            rng, 2 + instance % 3, provenance=bool(instance % 2), retrieval_levels=instance % 5 == 0
        )
        found = shortest_paths(stack, MOST)
        best = min(by_recurrence(stack, plan) for plan in all_plans(stack, MOST))
        assert found[0].ms == pytest.approx(best)
        assert by_recurrence(stack, found[0].plan) == pytest.approx(best)
        assert len({(one.plan.levels, one.plan.retrieval) for one in found}) == len(found)


def test_the_best_plan_is_nearly_the_best_by_the_exact_form() -> None:
    rng = np.random.default_rng(8)
    ratios = []
    for instance in range(60):
        stack = random_stack(rng, 2 + instance % 3, provenance=True, retrieval_levels=instance % 2 == 0)
        found = best_plan(stack, MOST)
        assert found.ms == pytest.approx(by_renewal(stack, found.plan))
        ratios.append(found.ms / min(by_renewal(stack, plan) for plan in all_plans(stack, MOST)))
    assert max(ratios) < 1.03
    assert np.mean(ratios) < 1.002


def test_never_worse_than_plain_decoding() -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        stack = random_stack(rng, 4, provenance=True)
        assert best_plan(stack).ms <= stack.cost(3, 1)


def test_a_useless_level_is_never_chosen() -> None:
    rng = np.random.default_rng(10)
    for _ in range(60):
        stack = random_stack(rng, 4)
        useless = [list(row) for row in stack.acceptance]
        useless[1] = [TokenAcceptance.of(0.0)] * 4
        assert 1 not in best_plan(replace(stack, acceptance=useless)).plan.levels


def test_a_free_level_never_hurts() -> None:
    rng = np.random.default_rng(11)
    for _ in range(60):
        stack = random_stack(rng, 3)
        acceptance = [
            [TokenAcceptance.of(float(rng.uniform(0.0, 0.95))) for _ in range(4)],
            *([TokenAcceptance.of(0.0), *row] for row in stack.acceptance),
        ]
        more = LevelStack([[0.0, 0.0], *stack.forward_ms], acceptance)
        assert shortest_paths(more)[0].ms <= shortest_paths(stack)[0].ms + 1e-9
        assert best_plan(more).ms <= best_plan(stack).ms * 1.001


def test_a_stack_pays_where_the_middle_level_is_cheap_in_width() -> None:
    """Retrieval, a draft, a target: the example of docs/architecture.md."""
    found = best_plan(flat([0.02, 2.0, 25.0], [0.35, 0.75]))
    assert found.plan.levels == (0, 1, 2)
    assert found.ms < 10.0
