"""The priors of hierchat/drafting/acceptance.py from recorded replies: python -m tests.drafting.fit TRACES

Logistic regressions over all that was considered while the questions with even ids were replayed; a few rounds, since
what is considered depends on the weights. First the context alone, then the history beside it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hierchat.drafting import acceptance
from hierchat.drafting.acceptance import Acceptance, Choice
from tests.drafting.replay import ENGINES, Trace, read, replay_all

ROUNDS = 3
RIDGE = 1.0


class Recorder(Acceptance):
    """Writes down each lesson; its weights stay at the priors."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, list[tuple[tuple[float, ...], bool]]] = defaultdict(list)

    def learn(self, choices: Sequence[Choice], token: int, *, first: bool) -> None:
        for choice in choices:
            self.told[choice.source].append((choice.features, choice.token == token))
        super().learn(choices, token, first=first)


def regress(told: Sequence[tuple[tuple[float, ...], bool]]) -> tuple[float, ...]:
    """Logistic regression by Newton's method."""
    seen = np.array([features for features, _ in told])
    right = np.array([truth for _, truth in told], float)
    weights = np.zeros(seen.shape[1])
    for _ in range(30):
        expected = 1 / (1 + np.exp(-seen @ weights))
        curvature = (seen * (expected * (1 - expected))[:, None]).T @ seen + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(curvature, seen.T @ (right - expected) - RIDGE * weights)
    return tuple(weights.round(2).tolist())


def fit(traces: Sequence[Trace], source: str, *, history: bool) -> None:
    for _ in range(ROUNDS):
        told = []
        for costs in ENGINES.values():
            recorder = Recorder()
            replay_all(traces, costs, recorder, history=history)
            told += recorder.told[source]
        acceptance.PRIORS[source] = regress(told)


def main() -> None:
    traces = read(Path(sys.argv[1]), 0)
    acceptance.RATE = 0.0
    fit(traces, "context", history=False)
    fit(traces, "history", history=True)
    for source, prior in acceptance.PRIORS.items():
        print(f'    "{source}": {prior},')


if __name__ == "__main__":
    main()
