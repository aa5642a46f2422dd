"""What forwards cost by their rows, from steps alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_tree import WIDEST_BATCH, RowCosts


@given(
    st.lists(st.tuples(st.integers(-3, 700), st.floats(0.0, 1e6)), max_size=40),
    st.integers(1, 700),
)
def test_costs_never_fall_whatever_was_seen(seen: list[tuple[int, float]], widest: int) -> None:
    costs = RowCosts(widest)
    for rows, ms in seen:
        costs.note(rows, ms)
    table = costs.step_ms(0)
    assert len(table) == min(max(widest, 2), WIDEST_BATCH)
    assert np.all(np.diff(table) >= 0)
    assert table[0] > 0
    assert np.isfinite(table).all()


@pytest.mark.parametrize(
    "truth",
    [
        lambda rows: 30.0 + 0.5 * rows,  # a processor
        lambda rows: 20.0 + 0.02 * max(rows - 64, 0),  # a GPU: free at first
    ],
)
def test_they_become_what_steps_take(truth) -> None:  # type: ignore[no-untyped-def]
    noise = random.Random(1)
    costs = RowCosts()
    widths = [1, 2, 5, 9, 16, 40, 70, 130, 260]
    for _ in range(60):
        for rows in widths:
            costs.note(rows, truth(rows) * noise.uniform(0.97, 1.03))
    found = costs.step_ms(0)
    for rows in [*widths, 100, 200]:
        assert found[rows - 1] == pytest.approx(truth(rows), rel=0.08)


def test_a_disturbed_step_changes_little_and_not_for_long() -> None:
    costs = RowCosts(64)
    for number in range(200):
        costs.note(1 + number % 9, 30.0)
    costs.note(5, 3000.0)
    for _ in range(16):
        costs.note(1, 30.0)
    assert max(costs.step_ms(0)[:9]) < 36.0
    for number in range(45):
        costs.note(1 + number % 9, 30.0)
    assert max(costs.step_ms(0)[:9]) < 31.0
