"""Expected latency, against figures worked out before and a simulation; the search, against all plans there are."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from hierchat.hierarchy.plan import (
    LevelStack,
    Plan,
    RetrievalLevel,
    TokenAcceptance,
    Yield,
    best_plan,
    by_renewal,
    shortest_paths,
)


def overall_only(rate: float) -> TokenAcceptance:
    return TokenAcceptance(rate, rate, rate, rate)


def flat(costs: list[float], between: list[float]) -> LevelStack:
    """Forwards that cost the same over any number of positions; `between`: acceptance of each level by the next."""
    levels = len(costs)
    acceptance = [[overall_only(between[below]) for _ in range(levels)] for below in range(levels - 1)]
    return LevelStack([[cost, cost] for cost in costs], acceptance)


def random_stack(
    rng: np.random.Generator, levels: int, *, provenance: bool = False, retrieval_levels: bool = False
) -> LevelStack:
    """Costs that rise with the level and with the width."""
    base = np.cumsum(rng.uniform(0.5, 8.0, levels))
    rows = rng.uniform(0.0, 0.3, levels)
    forward_ms = [[float(b * (1 + r * n)) for n in range(20)] for b, r in zip(base, rows, strict=True)]

    def some() -> TokenAcceptance:
        overall = float(rng.uniform(0.2, 0.97))
        if not provenance:
            return overall_only(overall)
        kept, corrected, bonus = np.clip(overall + rng.uniform(-0.2, 0.2, 3), 0.05, 0.98)
        return TokenAcceptance(float(kept), float(corrected), float(bonus), overall)

    acceptance = [[some() for _ in range(levels)] for _ in range(levels - 1)]
    if not retrieval_levels:
        return LevelStack(forward_ms, acceptance)
    return LevelStack(forward_ms, acceptance, [random_retrieval_level(rng, costs[0]) for costs in forward_ms])


def random_retrieval_level(rng: np.random.Generator, ms: float) -> RetrievalLevel:
    chances = rng.dirichlet(np.ones(8))
    return RetrievalLevel(Yield(chances[:4], chances[4:]), ms * float(rng.uniform(1.0, 1.5)))


def all_plans(stack: LevelStack, most: int) -> Iterator[Plan]:
    target = len(stack) - 1
    for count in range(len(stack)):
        for below in combinations(range(target), count):
            for blocks in product(range(1, most + 1), repeat=count):
                yield Plan((*below, target), blocks)
                if stack.retrieval_levels:
                    yield Plan((*below, target), blocks, retrieval=True)


def by_recurrence(stack: LevelStack, plan: Plan) -> float:
    """Milliseconds per token if drafts were exactly as long as asked for."""
    lowest = stack.retrieval_level(plan.levels[0], plan.retrieval)
    latency = lowest.ms / lowest.brings.tokens
    for below, above, length in zip(plan.levels, plan.levels[1:], plan.lengths, strict=False):
        gain = sum(stack.acceptance[below][above].overall ** n for n in range(length + 1))
        latency = (length * latency + stack.cost(above, length + 1)) / gain
    return latency


class Simulation:
    """Forward by forward. A token is (how it came about): kept, corrected or bonus."""

    def __init__(self, stack: LevelStack, plan: Plan, rng: np.random.Generator) -> None:
        self._stack, self._plan, self._rng = stack, plan, rng
        self.ms = 0.0

    def forward(self, at: int) -> list[str]:
        """One forward of plan.levels[at] with all that it needs from below: the tokens that it brings."""
        level = self._plan.levels[at]
        if at == 0:
            below = self._stack.retrieval_level(level, self._plan.retrieval)
            self.ms += below.ms
            chances = np.concatenate([below.brings.corrected, below.brings.bonus])
            drawn = int(self._rng.choice(len(chances), p=chances / chances.sum()))
            kind, kept = divmod(drawn, len(below.brings.bonus))
            return ["kept"] * kept + ["bonus" if kind else "corrected"]
        drafts: list[str] = []
        while len(drafts) < self._plan.lengths[at - 1]:
            drafts += self.forward(at - 1)
        self.ms += self._stack.cost(level, len(drafts) + 1)
        accepted = self._stack.acceptance[self._plan.levels[at - 1]][level]
        for number, draft in enumerate(drafts):
            if self._rng.random() >= getattr(accepted, draft):
                return ["kept"] * number + ["corrected"]
        return ["kept"] * len(drafts) + ["bonus"]

    def ms_per_token(self, forwards: int) -> tuple[float, float]:
        """The mean over forwards of the target, and its standard error."""
        times, tokens = np.zeros(forwards), np.zeros(forwards)
        for number in range(forwards):
            before = self.ms
            tokens[number] = len(self.forward(len(self._plan.levels) - 1))
            times[number] = self.ms - before
        ratio = times.sum() / tokens.sum()
        error = float(np.std(times - ratio * tokens) / tokens.mean() / forwards**0.5)
        return float(ratio), error


# Expected latency


@pytest.mark.parametrize("seed", [1, 2])
def test_agrees_with_monte_carlo(seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = 2 + seed
    stack = random_stack(rng, levels, provenance=True, retrieval_levels=True)
    plan = Plan(tuple(range(levels)), tuple(rng.integers(1, 7, levels - 1)), retrieval=bool(seed % 2))
    simulated, error = Simulation(stack, plan, rng).ms_per_token(3000)
    assert abs(by_renewal(stack, plan) - simulated) < 4 * error
    assert error < 0.05 * simulated


def test_beyond_the_last_known_width_rows_cost_on() -> None:
    stack = LevelStack([[1.0], [4.0, 5.0]], [[overall_only(0.5)] * 2])
    assert [stack.cost(1, positions) for positions in (1, 2, 3, 5)] == [4.0, 5.0, 6.0, 8.0]
    assert stack.cost(0, 3) == 3.0
    with pytest.raises(ValueError, match="No database"):
        by_renewal(stack, Plan((0, 1), (2,), retrieval=True))


# The search

MOST = 5


def test_the_shortest_path_is_the_best_of_all_plans() -> None:
    rng = np.random.default_rng(7)
    for instance in range(60):
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
    for instance in range(15):
        stack = random_stack(rng, 2 + instance % 3, provenance=True, retrieval_levels=instance % 2 == 0)
        found = best_plan(stack, MOST)
        assert found.ms == pytest.approx(by_renewal(stack, found.plan))
        ratios.append(found.ms / min(by_renewal(stack, plan) for plan in all_plans(stack, MOST)))
    assert max(ratios) < 1.03
    assert np.mean(ratios) < 1.002


def test_it_is_never_worse_than_plain_decoding_and_has_no_useless_level() -> None:
    rng = np.random.default_rng(10)
    for _ in range(20):
        stack = random_stack(rng, 4, provenance=True)
        assert best_plan(stack).ms <= stack.cost(3, 1)
        useless = [list(row) for row in stack.acceptance]
        useless[1] = [overall_only(0.0)] * 4
        assert 1 not in best_plan(replace(stack, acceptance=useless)).plan.levels
