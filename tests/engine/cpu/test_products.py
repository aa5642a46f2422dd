"""The products against float64, for every block type, every height and every set of instructions."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.engine.cpu.dot import ARGUMENTS, GROUP, SUMS, build, compiled, product_address, target_machine
from hierchat.engine.cpu.llvm import kernel
from hierchat.engine.cpu.memory import Shape, Work, make_work
from hierchat.engine.cpu.rows import ORDER, quantise
from hierchat.engine.cpu.trial import multiplied as through_work
from hierchat.engine.cpu.trial import random_rows
from hierchat.engine.cpu.unpacking import ISAS, Isa
from hierchat.jit import INSTRUCTIONS, supported
from hierchat.models.formats.blocks import from_file
from hierchat.models.formats.layouts import LAYOUTS, PLAIN, WIDE, interleave

QUANTISED = [name for name, layout in LAYOUTS.items() if layout.source != PLAIN]
HERE = supported()
EVERY = [isa if isa.name in HERE else replace(isa, exact_model=True) for isa in ISAS.values()]
"""Sets that this processor lacks with plain LLVM for their instructions: the same sums in the same order."""
ALIKE = ("Q3_K", *WIDE)
"""Read as Q2_K, Q6_K and IQ4_XS are, which stand for them on other processors."""
CASES = [(isa, name) for isa in EVERY for name in LAYOUTS if isa.name == INSTRUCTIONS or name not in ALIKE]
DAILY = {INSTRUCTIONS, "avx2", "generic"}
"""Instruction sets for which each type is compiled in every run; the others once a night."""


def sums_of(numbers: np.ndarray) -> np.ndarray:
    """[blocks, SUMS, rows], of int16 [rows, blocks, 32]; see rows.quantise."""
    rows, blocks, _ = numbers.shape
    wide = numbers.astype(np.int32)
    found = np.zeros((blocks, SUMS, rows), np.int32)
    found[:, 0] = wide.sum(2).astype(np.float32).view(np.int32).T
    found[:, 1:] = -32 * wide.reshape(rows, blocks, 2, 16).sum(3).transpose(1, 2, 0)
    return found


def multiplied(isa: Isa, name: str, raw: np.ndarray, x: np.ndarray, height: int) -> np.ndarray:
    """[height, rows of the matrix] by one call; `x` float32 of at most `height` rows."""
    columns = x.shape[1]
    padded = np.zeros((height, -(-columns // GROUP) * GROUP), np.float32)
    padded[: len(x), :columns] = x
    groups = padded.reshape(height, -1, GROUP)
    levels = np.abs(groups).max(axis=2) / np.float32(32767)
    numbers = np.rint(groups / np.where(levels == 0, 1, levels)[..., None]).astype(np.int16)
    numbers = numbers.reshape(height, -1)[:, :columns].reshape(height, -1, 32)
    given_ = [
        np.ascontiguousarray(numbers[..., ORDER].transpose(1, 0, 2))
        if name in QUANTISED
        else padded[:, :columns].copy(),
        np.ascontiguousarray(levels.T),
        sums_of(numbers),
    ]
    weights = interleave(name, raw, isa.lanes)
    out = np.full((height, len(raw) + 1), np.nan, np.float32)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(ARGUMENTS))(product_address(name, isa))
    addresses = [array.ctypes.data for array in (weights, *given_)]
    function(height, *addresses, columns // 32, out.ctypes.data, out.strides[0], len(raw))
    assert np.isnan(out[:, -1]).all()  # nothing is written behind the last row
    return out[:, :-1]


def exact(name: str, raw: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
    """The product in float64, and the size of its largest sum of absolute values."""
    weights = from_file(name, raw).floats().astype(np.float64)
    return x @ weights.T, float((np.abs(x).astype(np.float64) @ np.abs(weights).T).max())


@pytest.mark.parametrize(
    ("isa", "name"),
    [case if case[0].name in DAILY else pytest.param(*case, marks=pytest.mark.large) for case in CASES],
    ids=lambda case: getattr(case, "name", case),
)
def test_every_type_agrees_with_float64_at_every_height(isa: Isa, name: str) -> None:
    for columns in (256, 768) if LAYOUTS[name].weights == 256 else (32, 288):
        raw = random_rows(name, 37, columns)
        x = np.random.default_rng(1).standard_normal((isa.most, columns)).astype(np.float32)
        right, size = exact(name, raw, x)
        alone = np.concatenate([multiplied(isa, name, raw, row[None], 1) for row in x])
        assert np.abs(alone - right).max() <= 2e-5 * size
        for height in isa.heights:
            np.testing.assert_array_equal(multiplied(isa, name, raw, x[:height], height), alone[:height])
            behind = multiplied(isa, name, raw, x[isa.most - height :], height)
            np.testing.assert_array_equal(behind, alone[isa.most - height :])


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q6_K", "Q8_0", "Q5_1"])
def test_all_sets_give_the_same_bits(name: str) -> None:
    """Those that round a multiply-add once: the same integers, the same floats in the same order."""
    raw = random_rows(name, 20, 512)
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    found = [multiplied(isa, name, raw, x, 3) for isa in EVERY if isa.fused]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("name", QUANTISED)
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 40),
    blocks=st.integers(1, 20),
    scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]),
    seed=st.integers(0, 99),
)
def test_any_shape_and_any_scale(name: str, rows: int, blocks: int, scale: float, seed: int) -> None:
    columns = blocks * LAYOUTS[name].weights
    raw = random_rows(name, rows, columns, seed)
    x = (np.random.default_rng(seed).standard_normal((5, columns)) * scale).astype(np.float32)
    x[1, :] = 0
    x[2, ::7] *= 1e4
    right, _ = exact(name, raw, x)
    isa = ISAS[INSTRUCTIONS]
    found = multiplied(isa, name, raw, x, 6)[:5]
    assert np.isfinite(found).all()
    highest = np.abs(x).astype(np.float64).max(axis=1, keepdims=True)
    weights = np.abs(from_file(name, raw).floats()).astype(np.float64).sum(axis=1)
    assert (np.abs(found - right) <= highest * (1.6e-5 * weights + 1e-5 * columns) + 1e-30).all()
    for row in range(5):
        np.testing.assert_array_equal(multiplied(isa, name, raw, x[row : row + 1], 1)[0], found[row])


@pytest.mark.parametrize("name", QUANTISED)
def test_the_largest_numbers_do_not_overflow(name: str) -> None:
    columns = 512
    raw = random_rows(name, 9, columns)
    x = np.full((3, columns), 7.0, np.float32)
    x[1] *= -1
    right, size = exact(name, raw, x)
    for isa in [isa for isa, its in CASES if its == name]:
        assert np.abs(multiplied(isa, name, raw, x, 3) - right).max() <= 2e-5 * size


@kernel
def _quantise(x, work):  # type: ignore[no-untyped-def]
    for row in range(x.shape[0]):
        quantise(x[row], 0, row, x.shape[0], work)


def room(rows: int, columns: int) -> Work:
    shape = Shape(1, columns, 1, 1, 16, columns, 1, 1e-5, 0)
    return make_work((shape,), rows, 1)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q5_0", "BF16"])
@pytest.mark.parametrize("rows", [1, 5, 7, 8, 9, 16, 17, 31, 45])
def test_any_number_of_rows_in_tiles(name: str, rows: int) -> None:
    matrix = from_file(name, random_rows(name, 50, 768))
    x = np.random.default_rng(rows).standard_normal((rows, 768)).astype(np.float32)
    right = x @ matrix.floats().astype(np.float64).T
    found = through_work(matrix, x)
    assert np.abs(found - right).max() <= 1e-4 * np.abs(right).max()
    for row in (0, rows // 2, rows - 1):
        np.testing.assert_array_equal(through_work(matrix, x[row : row + 1])[0], found[row])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), min_size=64, max_size=64),
    st.sampled_from([32, 64]),
)
def test_int16_keeps_a_row_to_one_part_in_65000(numbers: list[float], length: int) -> None:
    x = np.array([numbers[:length]], np.float32)
    work = room(1, length)
    _quantise(x, work)
    level = work.levels[0]
    back = np.empty(length)
    back.reshape(-1, 32)[:, ORDER] = work.integers[:length].reshape(-1, 32).astype(np.float64) * level
    assert np.abs(back - x[0]).max() <= max(0.51 * np.abs(x).max() / 32767, 1e-30)
    found = work.sums[: length // 32 * SUMS].reshape(-1, SUMS, 1)
    whole = found[:, 0].copy().view(np.float32) * level
    np.testing.assert_allclose(whole[:, 0], back.reshape(-1, 32).sum(1), rtol=1e-4, atol=1e-30 + 1e-3 * level)
    assert (found[:, 1:].sum(axis=1) == -32 * found[:, 0].copy().view(np.float32)).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(broken: float) -> None:
    x = np.ones((2, 256), np.float32)
    x[0, 7] = broken
    for name in ("Q8_0", "Q4_1", "Q6_K", "F32"):
        found = through_work(from_file(name, random_rows(name, 3, 256)), x)
        assert not np.isfinite(found[0]).any()
        assert np.isfinite(found[1]).all()


@pytest.mark.parametrize(
    ("name", "cpu", "triple", "expected"),
    [
        ("avx512vnni", "icelake-server", "x86_64-unknown-linux-gnu", "vpdpwssd"),
        ("avx512", "skylake-avx512", "x86_64-unknown-linux-gnu", "vpmaddwd"),
        ("avxvnni", "alderlake", "x86_64-unknown-linux-gnu", "{vex} vpdpwssd"),
        ("avx2", "haswell", "x86_64-unknown-linux-gnu", "vpmaddwd"),
        ("neon", "neoverse-n1", "aarch64-unknown-linux-gnu", "mla"),
        ("generic", "x86-64", "x86_64-unknown-linux-gnu", "pmaddwd"),
    ],
)
def test_other_processors_get_their_instructions(name: str, cpu: str, triple: str, expected: str) -> None:
    isa = ISAS[name]
    machine = target_machine(isa, cpu, triple)
    text = machine.emit_assembly(compiled(build("Q4_K", isa, (isa.most,)), machine))
    assert text.replace("\t", " ").count(expected) >= 16 * 4
    registers = {"avx512vnni": "%zmm31", "avx512": "%zmm31", "generic": "%xmm15", "neon": "v31"}
    assert registers.get(name, "%ymm15") in text
    if name in ("avxvnni", "avx2"):
        assert "zmm" not in text
        assert "%ymm16" not in text
