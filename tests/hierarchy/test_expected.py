"""Expected latency: the figures that were worked out before, a simulation, and what must be so in any case."""

from __future__ import annotations

import numpy as np
import pytest

from hierchat.hierarchy.plan import LevelStack, Plan, TokenAcceptance, by_recurrence, by_renewal, gain

from .simulated import Simulation, all_plans, flat, random_stack


@pytest.mark.parametrize(
    ("costs", "between", "blocks", "recurrence", "renewal"),
    [
        ([1.0, 4.0, 20.0], [0.7, 0.8], (3, 6), 9.258, 9.535),
        ([1.0, 3.0, 8.0, 30.0], [0.75, 0.8, 0.85], (2, 4, 8), 13.59, 14.77),
    ],
)
def test_known_figures(
    costs: list[float], between: list[float], blocks: tuple[int, ...], recurrence: float, renewal: float
) -> None:
    stack, plan = flat(costs, between), Plan(tuple(range(len(costs))), blocks)
    assert by_recurrence(stack, plan) == pytest.approx(recurrence, abs=0.005)
    assert by_renewal(stack, plan) == pytest.approx(renewal, abs=0.005)


def test_gain() -> None:
    assert gain(0.0, 5) == 1.0
    assert gain(1.0, 5) == 6.0
    assert gain(0.5, 2) == 1.75


def test_one_draft_model_is_the_same_in_both_forms() -> None:
    """Blocks of a level without drafts are exactly as long as asked for."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        stack = random_stack(rng, 2)
        for plan in all_plans(stack, 6):
            assert by_renewal(stack, plan) == pytest.approx(by_recurrence(stack, plan))


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_monte_carlo(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = 2 + seed % 4
    stack = random_stack(rng, levels, provenance=True, retrieval_levels=True)
    plan = Plan(tuple(range(levels)), tuple(rng.integers(1, 7, levels - 1)), retrieval=bool(seed % 2))
    simulated, error = Simulation(stack, plan, rng).ms_per_token(3000)
    assert abs(by_renewal(stack, plan) - simulated) < 4 * error
    assert error < 0.05 * simulated


def test_perfect_drafts_are_all_kept() -> None:
    stack = flat([1.0, 2.0, 10.0], [1.0, 1.0])
    # 2 drafts and one more make 3 at level 1; two of those make 6, and the target adds one.
    assert by_renewal(stack, Plan((0, 1, 2), (2, 4))) == pytest.approx((2 * (2 * 1.0 + 2.0) + 10.0) / 7)


def test_beyond_the_last_known_width_rows_cost_on() -> None:
    stack = LevelStack([[1.0], [4.0, 5.0]], [[TokenAcceptance.of(0.5)] * 2])
    assert [stack.cost(1, positions) for positions in (1, 2, 3, 5)] == [4.0, 5.0, 6.0, 8.0]
    assert stack.cost(0, 3) == 3.0


def test_no_databases_below_a_level() -> None:
    with pytest.raises(ValueError, match="No database"):
        by_renewal(flat([1.0, 2.0], [0.5]), Plan((0, 1), (2,), retrieval=True))
