"""What the target likes best at each step: found right, and told to the drafter that asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.engine.cuda.cuda_runner import CudaRunner
from hierchat.engine.sampling.sampler import BLOCK, top_tokens
from hierchat.engine.verification import ArrayRows, LateRows
from tests.engine.drafters import Buried
from tests.testing.tiny import (
    VOCABULARY,
    Backend,
    fresh_steps,
    random_tokens,
    tiny_engine,
    tiny_model,
)

SETTINGS = {
    "greedy": GenerationSettings(max_new_tokens=30),
    "sampled": GenerationSettings(max_new_tokens=30, temperature=0.9, seed=3),
    "biased": GenerationSettings(max_new_tokens=30, logit_bias={7: 9.0}, repetition_penalty=1.2),
}


def defined(row: NDArray[np.floating], count: int) -> NDArray[np.int32]:
    """As it is meant: a stable sort of all."""
    order = np.argsort(-row, kind="stable")[:count]
    return np.pad(order, (0, count - len(order)), constant_values=-1).astype(np.int32)


@settings(deadline=None)
@given(
    row=hnp.arrays(
        np.float32,
        st.integers(1, 3 * BLOCK + 5),
        elements=st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 1.0, 2.5]) | st.floats(-9, 9, width=32),
    ),
    count=st.integers(1, 12),
)
def test_the_largest_in_order_and_equals_by_id(row: NDArray[np.float32], count: int) -> None:
    expected = defined(row, count)
    assert np.array_equal(top_tokens(row, count), expected)
    device = CudaRunner.__new__(CudaRunner)
    device.vocabulary, device._flying = len(row), False
    found = device._fetch_top(torch.from_numpy(np.stack([row, row])), [1], count)
    assert found.dtype == np.int32
    assert np.array_equal(found[0], expected)


class Curious(Buried):
    """Asks for the three likeliest; drafts that are accepted and drafts that are not."""

    def __init__(self, reply: Sequence[int]) -> None:
        super().__init__(reply)
        self.top = 3
        self.told: list[NDArray[np.int32]] = []

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        super().observe(tokens, top)
        assert top is not None
        assert top.shape == (len(tokens), 3)
        self.told.append(top)


class Incurious(Buried):
    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        super().observe(tokens, top)
        assert top is None


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("backend", ["llama-float32", "qwen3-blocks"])
def test_a_drafter_is_told_of_every_row_that_chose(backend: Backend, kind: str) -> None:
    engine, prompt = tiny_engine(backend), random_tokens(20)
    reply = [token for step in fresh_steps(engine, prompt, SETTINGS[kind]) for token in step.tokens]
    curious = Curious(reply)
    steps = fresh_steps(engine, prompt, SETTINGS[kind], curious)
    assert max(len(step.tokens) for step in steps) > 3
    told = np.concatenate(curious.told)
    assert len(told) == len(reply) == 30
    text = prompt + reply
    engine.sequence.rollback(0)
    engine.sequence.read(text[: len(prompt) - 1])
    rows = engine.sequence.forward(text[len(prompt) - 1 : len(prompt)], [-1])
    for place, best in enumerate(told):
        assert np.array_equal(best, defined(np.array(rows[0]), 3))
        engine.sequence.commit([0])
        rows = engine.sequence.forward([reply[place]], [-1])
    if kind == "greedy":
        assert told[:, 0].tolist() == reply


def test_who_does_not_ask_is_told_nothing() -> None:
    engine, prompt = tiny_engine(), random_tokens(20)
    assert fresh_steps(engine, prompt, SETTINGS["greedy"], Incurious([]))[-1].finish == "length"


def test_rows_on_a_device_bring_only_the_likeliest() -> None:
    target = CudaRunner(tiny_model(), context_length=128, regime=(16, 32)).open()
    prompt = random_tokens(20)
    target.read(prompt)
    rows: Any = target.forward(random_tokens(5, seed=1), [-1, 0, 1, 1, 0])
    rows.best(0)
    found = rows.likeliest([0, 4, 2], 4)
    assert rows._rows is None
    assert np.array_equal(found, [defined(rows[node], 4) for node in (0, 4, 2)])
    assert np.array_equal(rows.likeliest([3], 4), ArrayRows(np.array([rows[3]])).likeliest([0], 4))
    late = LateRows(lambda: np.zeros(1, np.int64), lambda: np.eye(1, VOCABULARY, 5, dtype=np.float32), 1)
    assert late.likeliest([0], 2).tolist() == [[5, 0]]
    old, _ = rows, target.forward([1], [-1])
    with pytest.raises(RuntimeError, match="earlier forward"):
        old.likeliest([0], 4)
