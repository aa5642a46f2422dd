"""The kernels against plain numpy, for every kind of weights and every height."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.engine.cpu.dot import GROUP, HEIGHTS, multiplier, multiply
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.rows import quantise
from hierchat.models.formats.block_types import TYPES, unpack
from hierchat.models.formats.quantised_blocks import QUANTISED, BlockKind, Blocks


@kernel
def _multiply(place, height, weights, scales, x, levels, sums, blocks, out, stride, count):  # type: ignore[no-untyped-def]
    multiply(place, height, weights, scales, x, levels, sums, blocks, out, stride, count)


def product(matrix: Blocks, x: np.ndarray, height: int) -> np.ndarray:
    """[height, rows of the matrix], through one call of the kernel."""
    rows, columns = matrix.shape
    blocks, groups = columns // 32, -(-columns // GROUP)
    integers = np.zeros(8 * columns, np.int16)
    levels, sums = np.zeros(8 * groups, np.float32), np.zeros(8 * blocks, np.float32)
    for row in range(height):
        quantise(x[row], row, integers, levels, sums)
    given = integers if matrix.kind in QUANTISED else np.ascontiguousarray(x)
    out = np.full((height, rows), np.nan, np.float32)
    parts = (matrix.weights, matrix.scales, given, levels, sums)
    _multiply(
        multiplier(matrix.kind),
        height,
        *(part.ctypes.data for part in parts),
        blocks,
        out.ctypes.data,
        rows * 4,
        rows,
    )
    return out


def some_matrix(name: str, rows: int, columns: int, seed: int = 0) -> Blocks:
    """Random bytes as blocks of a file's type, with scales that are sane."""
    random = np.random.default_rng(seed)
    size, _ = TYPES[name]
    numbers = {"F32": 1, "F16": 1, "BF16": 1}.get(name, 256 if name.endswith("K") else 32)
    if numbers == 1:
        floats = random.standard_normal((rows, columns)).astype(np.float32)
        if name == "F16":
            raw = floats.astype(np.float16).view(np.uint8)
        else:
            raw = floats.view(np.uint8)
            raw = raw.reshape(rows, columns, 4)[..., 2:] if name == "BF16" else raw
        return unpack(name, np.ascontiguousarray(raw).reshape(rows, -1))
    raw = random.integers(0, 256, (rows, columns // numbers, size), dtype=np.uint8)
    halves = random.uniform(0.001, 0.1, (rows, columns // numbers, 2)).astype(np.float16).view(np.uint8)
    if name == "Q6_K":
        raw[..., 208:] = halves[..., :2]
    else:
        raw[..., : 4 if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 2] = halves[
            ..., : 4 if name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 2
        ]
    return unpack(name, raw.reshape(rows, -1))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("columns", [256, 512, 768])
def test_every_type_agrees_with_numpy(name: str, columns: int) -> None:
    matrix = some_matrix(name, 40, columns)
    x = np.random.default_rng(1).standard_normal((8, columns)).astype(np.float32)
    exact = x.astype(np.float64) @ matrix.floats().astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(matrix.floats()).astype(np.float64).T
    assert np.abs(product(matrix, x, 8) - exact).max() <= 2e-5 * size.max()


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q5_1", "Q6_K", "F16", "BF16", "F32"])
@settings(max_examples=20, deadline=None)
@given(columns=st.integers(1, 30), seed=st.integers(0, 1000))
def test_a_row_has_the_same_bits_at_every_height(name: str, columns: int, seed: int) -> None:
    matrix = some_matrix(name, 9, columns * (256 if name == "Q6_K" else 32), seed)
    x = np.random.default_rng(seed).standard_normal((8, matrix.shape[1])).astype(np.float32)
    all_rows = product(matrix, x, 8)
    for height in HEIGHTS:
        np.testing.assert_array_equal(product(matrix, x, height), all_rows[:height])
        behind = np.ascontiguousarray(x[8 - height :])
        np.testing.assert_array_equal(product(matrix, behind, height), all_rows[8 - height :])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), min_size=64, max_size=64),
    st.sampled_from([32, 64]),
)
def test_int16_keeps_a_row_to_one_part_in_65000(numbers: list[float], length: int) -> None:
    x = np.array(numbers[:length], np.float32)
    integers, levels, sums = np.zeros(64, np.int16), np.zeros(1, np.float32), np.zeros(16, np.float32)
    quantise(x, 0, integers, levels, sums)
    back = integers[:length].astype(np.float64) * levels[0]
    assert np.abs(back - x).max() <= max(0.51 * np.abs(x).max() / 32767, 1e-30)
    np.testing.assert_allclose(
        sums.reshape(2, 8)[: length // 32, 0],
        back.reshape(-1, 32).sum(1),
        rtol=1e-4,
        atol=1e-30 + 1e-3 * levels[0],
    )


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(broken: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 7] = broken
    for kind in ("Q8_0", "Q4_1", "F32"):
        assert not np.isfinite(product(some_matrix(kind, 3, 64), x, 1)).any()


def test_kinds_are_numbered_as_the_kernels_expect() -> None:
    assert [kind.value for kind in BlockKind] == list(range(9))
