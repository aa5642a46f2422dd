"""Panels hold what the file holds, at its size, and give it back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.models.formats.layouts import LAYOUTS, interleave, restore


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 40), blocks=st.integers(1, 5), lanes=st.sampled_from([8, 16]), seed=st.integers(0, 99)
)
def test_every_byte_comes_back(name: str, rows: int, blocks: int, lanes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows, blocks * LAYOUTS[name].size), dtype=np.uint8)
    order = random.permutation(rows)
    panels = interleave(name, raw, lanes, order)
    assert panels.nbytes == -(-rows // lanes) * lanes * raw.shape[1]
    some = random.integers(0, rows, 7)
    np.testing.assert_array_equal(restore(name, panels, lanes, some, raw.shape[1]), raw[order[some]])


def test_many_panels_on_several_threads() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (4000, 2 * 144), dtype=np.uint8)
    panels = interleave("Q4_K", raw, 8)
    np.testing.assert_array_equal(restore("Q4_K", panels, 8, np.arange(4000), 288), raw)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_block_has_the_size_that_its_fields_have(name: str) -> None:
    layout = LAYOUTS[name]
    numbers = layout.weights * layout.bits // 8
    assert layout.head_size + numbers == layout.size
    assert layout.place(len(layout.head), 8) == 8 * layout.head_size
