"""Random ladders, and a simulation that knows nothing of the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from hierchat.hierarchy.plan import LevelStack, Plan, RetrievalLevel, TokenAcceptance, Yield


def flat(costs: list[float], between: list[float]) -> LevelStack:
    """Forwards that cost the same over any number of positions; `between`: acceptance of each level by the next."""
    levels = len(costs)
    acceptance = [[TokenAcceptance.of(between[below]) for _ in range(levels)] for below in range(levels - 1)]
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
            return TokenAcceptance.of(overall)
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
