"""Rows that lie on a device: fetched once, of one kind, and chosen from by the same rule."""

from __future__ import annotations

import numpy as np
import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import DraftTree
from hierchat.engine.sampling.sampler import BrokenLogits, Counts
from hierchat.engine.verification import ArrayRows, LateRows, Sampler, verify

LOGITS = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)


class Device:
    """Counts what is asked of it."""

    def __init__(self, logits: np.ndarray = LOGITS) -> None:
        self.logits = logits
        self.asked: list[str] = []

    def rows(self) -> LateRows:
        finite = np.isfinite(self.logits).all(axis=1)
        best = np.where(finite, self.logits.argmax(axis=1), -1)

        def ask(kind: str, answer: np.ndarray) -> np.ndarray:
            self.asked.append(kind)
            return answer

        return LateRows(
            lambda: ask("best", best), lambda: ask("logits", self.logits.copy()), len(self.logits)
        )


SETTINGS = {
    "greedy": GenerationSettings(),
    "sampled": GenerationSettings(temperature=0.9, seed=3),
    "penalised": GenerationSettings(repetition_penalty=1.3),
    "biased": GenerationSettings(logit_bias={7: 9.0}),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_choice_is_that_of_an_array_and_costs_one_question(kind: str) -> None:
    wanted, device = SETTINGS[kind], Device()
    drafts = DraftTree(tuple(LOGITS.argmax(axis=1)[:3].tolist()), (-1, 0, 1))
    expected = verify(ArrayRows(LOGITS), drafts, 9, Sampler(wanted, Counts([3])))
    rows, sampler = device.rows(), Sampler(wanted, Counts([3]))
    sampler.wait_for(rows)
    assert len(device.asked) == 1
    assert verify(rows, drafts, 9, sampler) == expected
    assert device.asked == ["best" if kind == "greedy" else "logits"]
    if kind == "greedy":
        assert len(expected.tokens) == 4


@pytest.mark.parametrize("kind", SETTINGS)
def test_broken_weights_are_an_error(kind: str) -> None:
    broken = LOGITS.copy()
    broken[1, 5] = np.nan
    rows = Device(broken).rows()
    sampler = Sampler(SETTINGS[kind], Counts())
    sampler.choose(rows, 0, 9)
    with pytest.raises(BrokenLogits):
        sampler.choose(rows, 1, 9)


@pytest.mark.parametrize("before", [True, False])
def test_rows_of_an_earlier_forward_are_refused(before: bool) -> None:
    rows = Device().rows()
    if before:
        assert rows[0].shape == (50,)
    rows.expire()
    with pytest.raises(RuntimeError, match="earlier forward"):
        rows[0]
    with pytest.raises(RuntimeError, match="earlier forward"):
        rows.best(0)
