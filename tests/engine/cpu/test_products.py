"""The products against float64, for every block type, any number of rows and every set of instructions; and whole
forwards of one set against those of another."""

import ctypes
import os
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from numpy.typing import NDArray

from hierchat.engine.cpu.dot import (
    ARGUMENTS,
    BYTE_SUMS,
    GROUP,
    SUMS,
    build,
    compiled,
    product_address,
    takes_int8,
    target_machine,
)
from hierchat.engine.cpu.llvm import I8, I16, I32, kernel, vector
from hierchat.engine.cpu.memory import FORM, INT8, INT16, Shape, Work, make_work
from hierchat.engine.cpu.rows import ORDER, product, quantise, record
from hierchat.engine.cpu.unpacking import ISAS, POWERS, Isa
from hierchat.jit import INSTRUCTION_SETS, INSTRUCTIONS, supported
from hierchat.models.catalogue import Activations
from hierchat.models.formats.blocks import Blocks, from_file
from hierchat.models.formats.layouts import LAYOUTS, PLAIN, WIDE, interleave


class InPlainLlvm(Isa):
    """A set of instructions in plain LLVM, for a processor that lacks them."""

    @property
    def lookup(self) -> None:
        return None

    def dot(self, b: ir.IRBuilder, total: ir.Value | None, one: ir.Value, other: ir.Value) -> ir.Value:
        pairs = "lanes" if self.pairs == "lanes" else "plain"
        return replace(ISAS[self.name], pairs=pairs).dot(b, total, one, other)

    def dot_bytes(self, b: ir.IRBuilder, total: ir.Value | None, one: ir.Value, other: ir.Value) -> ir.Value:
        lanes, group = self.lanes, 2 if self.octets == "pmaddubsw" else 4
        kind = vector(I32, lanes) if group == 4 else vector(I16, 2 * lanes)
        octets, wide = vector(I8, 4 * lanes), vector(kind.element, 4 * lanes)
        both = b.mul(b.zext(b.bitcast(one, octets), wide), b.sext(b.bitcast(other, octets), wide))
        none = ir.Constant(wide, ir.Undefined)
        for first in range(group):
            places = ir.Constant(vector(I32, kind.count), list(range(first, 4 * lanes, group)))
            part = b.shuffle_vector(both, none, places)
            total = part if total is None else b.add(total, part)
        return total


HERE = supported()
EVERY = [isa if isa.name in HERE else InPlainLlvm(*astuple(isa)) for isa in ISAS.values()]
"""Sets that this processor lacks with plain LLVM for their instructions: the same sums in the same order."""
ALIKE = ("Q3_K", *WIDE)
"""Read as Q2_K, Q6_K and IQ4_XS are, which stand for them on other processors, and by day on this one."""
QUANTISED = [name for name, layout in LAYOUTS.items() if layout.source != PLAIN and name not in ALIKE]
CASES = [(isa, name) for isa in EVERY for name in LAYOUTS if isa.name == INSTRUCTIONS or name not in ALIKE]
DAILY = ("Q2_K", "Q4_K", "Q5_1", "Q6_K", "Q8_0", "MXFP4", "F16")
"""Types, one of each way to read them, compiled in every run for other sets, too; the rest once a night."""


def _is_daily(isa: Isa, name: str) -> bool:
    if isa.name == INSTRUCTIONS:
        return name not in ALIKE
    return name in DAILY and (isa.name == "avx2" or (isa.name == "generic" and name in ("Q4_K", "F16")))


def _over(cases: list[tuple[Isa, str]]) -> pytest.MarkDecorator:
    marks = {True: (), False: pytest.mark.large}
    return pytest.mark.parametrize(
        ("isa", "name"),
        [
            pytest.param(*case, marks=marks[_is_daily(*case)], id=f"{case[0].name}-{case[1]}")
            for case in cases
        ],
    )


BYTES = [(isa, name) for isa, name in CASES if takes_int8(name, isa, "int8")]


def random_rows(name: str, rows: int, columns: int, seed: int = 0, largest: float = 0.1) -> NDArray[np.uint8]:
    """Make random rows of a file in a block type, uint8 [rows, bytes of a row], with scales up to `largest`."""
    random = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    if layout.source == PLAIN:
        floats = random.standard_normal((rows, columns)).astype(np.float32)
        if name == "F16":
            return floats.astype(np.float16).view(np.uint8)
        raw = floats.view(np.uint8)
        if name == "BF16":
            raw = np.ascontiguousarray(raw.reshape(rows, columns, 4)[..., 2:]).reshape(rows, -1)
        return raw
    raw = random.integers(0, 256, (rows, columns // layout.weights, layout.size), dtype=np.uint8)
    if name == POWERS:
        raw[..., 0] = random.integers(-6, 1, raw.shape[:2]) + int(np.log2(largest)) + 128
    scales = [field.offset for field in layout.head if field.size == 2]
    for offset in scales:
        halves = random.uniform(0.01 * largest, largest, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., offset : offset + 2] = halves.view(np.uint8)
    return raw.reshape(rows, -1)


def through_work(
    matrix: Blocks, x: NDArray[np.float32], activations: Activations = "int16"
) -> NDArray[np.float32]:
    """Multiply the matrix with rows of activations, as a forward does it; float32 [rows of x, rows of the matrix]."""
    size = matrix.columns
    work = make_work((Shape(1, size, 1, 1, 16, size, 1, 1e-5, 0),), len(x), 1)
    work.input.plain[: x.size] = x.reshape(-1)
    entry = np.array(record(matrix, activations))
    for number, row in enumerate(x):
        quantise(row, entry[FORM], 0, number, len(x), work.input)
    out = np.full((len(work.x), matrix.rows), np.nan, np.float32)
    product(entry, 0, 0, matrix.rows, 0, len(x), work.input, out.ctypes.data, out.strides[0])
    return out[: len(x)]


def sums_of(numbers: np.ndarray) -> np.ndarray:
    """[blocks, SUMS, rows], of int16 [rows, blocks, 32]; see rows.quantise."""
    rows, blocks, _ = numbers.shape
    wide = numbers.astype(np.int32)
    found = np.zeros((blocks, SUMS, rows), np.int32)
    found[:, 0] = wide.sum(2).astype(np.float32).view(np.int32).T
    found[:, 1:] = -32 * wide.reshape(rows, blocks, 2, 16).sum(3).transpose(1, 2, 0)
    return found


def multiplied(isa: Isa, name: str, raw: np.ndarray, x: np.ndarray, many: int) -> np.ndarray:
    """[many, rows of the matrix] by one call, of int16; `x` float32 of at most `many` rows."""
    columns = x.shape[1]
    padded = np.zeros((many, -(-columns // GROUP) * GROUP), np.float32)
    padded[: len(x), :columns] = x
    groups = padded.reshape(many, -1, GROUP)
    levels = np.abs(groups).max(axis=2) / np.float32(32767)
    numbers = np.rint(groups / np.where(levels == 0, 1, levels)[..., None]).astype(np.int16)
    numbers = numbers.reshape(many, -1)[:, :columns].reshape(many, -1, 32)
    given_ = [
        np.ascontiguousarray(numbers[..., ORDER].transpose(1, 0, 2))
        if LAYOUTS[name].source != PLAIN
        else padded[:, :columns].copy(),
        np.ascontiguousarray(levels.T),
        sums_of(numbers),
    ]
    return called(isa, name, raw, given_, "int16")


def called(
    isa: Isa, name: str, raw: np.ndarray, given_: list[np.ndarray], activations: Activations
) -> np.ndarray:
    """One call of a product: x, scales [.., many], sums."""
    weights, many = interleave(name, raw, isa.lanes), given_[1].shape[-1]
    out = np.full((many, len(raw) + 1), np.nan, np.float32)
    address = product_address(name, isa, activations)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(ARGUMENTS))(address)
    addresses = [array.ctypes.data for array in (weights, *given_)]
    columns = raw.shape[1] // LAYOUTS[name].size * LAYOUTS[name].weights
    function(many, *addresses, columns // 32, out.ctypes.data, out.strides[0], len(raw))
    assert np.isnan(out[:, -1]).all()  # nothing is written behind the last row
    return out[:, :-1]


def exact(name: str, raw: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
    """The product in float64, and the size of its largest sum of absolute values."""
    weights = from_file(name, raw).floats().astype(np.float64)
    return x @ weights.T, float((np.abs(x).astype(np.float64) @ np.abs(weights).T).max())


@_over(CASES)
def test_every_type_agrees_with_float64_for_any_number_of_rows(isa: Isa, name: str) -> None:
    for columns in (256, 768) if LAYOUTS[name].weights == 256 else (32, 288):
        raw = random_rows(name, 37, columns)
        x = np.random.default_rng(1).standard_normal((isa.most, columns)).astype(np.float32)
        right, size = exact(name, raw, x)
        alone = np.concatenate([multiplied(isa, name, raw, row[None], 1) for row in x])
        assert np.abs(alone - right).max() <= 2e-5 * size
        for many in isa.rows:
            np.testing.assert_array_equal(multiplied(isa, name, raw, x[:many], many), alone[:many])
            behind = multiplied(isa, name, raw, x[isa.most - many :], many)
            np.testing.assert_array_equal(behind, alone[isa.most - many :])
        loud = np.full((3, columns), 7.0, np.float32)
        loud[1] *= -1
        right, size = exact(name, raw, loud)
        assert np.abs(multiplied(isa, name, raw, loud, 3) - right).max() <= 2e-5 * size  # nothing overflows


def whole_numbers(name: str, rows: int, columns: int) -> np.ndarray:
    """Blocks whose weights are whole numbers: all float16 scales are 1."""
    raw = random_rows(name, rows, columns, 3).reshape(rows, -1, LAYOUTS[name].size)
    for field in LAYOUTS[name].head:
        if field.size == 2 and not (name == "IQ4_XS" and field.offset == 2):
            raw[..., field.offset : field.offset + 2] = np.ones(1, np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[..., 0] = 128
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("largest", [127, 3])
@_over(BYTES)
def test_int8_gives_the_bits_of_integers(isa: Isa, name: str, largest: int) -> None:
    """Scales are whole numbers, so that no float is rounded (as long as sums stay below 2**24)."""
    columns, most = 256, isa.most
    raw = whole_numbers(name, 37, columns)
    random = np.random.default_rng(4)
    x = random.integers(-largest, largest + 1, (most, columns // 32, 32), dtype=np.int64)
    x[0] = largest  # where sums are largest
    x[1] = -largest
    scales = random.integers(1, 3, (most, columns // 32))
    halves = x.reshape(most, -1, 2, 16).sum(3)

    def at(many: int, first: int = 0) -> np.ndarray:
        mine = slice(first, first + many)
        sums = np.zeros((columns // 32, BYTE_SUMS, many), np.int32)
        whole = (halves[mine].sum(2) * scales[mine]).astype(np.float32)
        sums[:, 0] = whole.view(np.int32).T
        sums[:, 1:3] = -32 * halves[mine].transpose(1, 2, 0)
        sums[:, 3] = np.ascontiguousarray(halves[mine].astype(np.int16)).view(np.int32)[..., 0].T
        numbers = np.ascontiguousarray(x[mine].astype(np.int8).transpose(1, 0, 2))
        given_ = [numbers, np.ascontiguousarray(scales[mine].T.astype(np.float32)), sums]
        return called(isa, name, raw, given_, "int8")

    weights = from_file(name, raw).floats().astype(np.float64)
    right = (x * scales[..., None]).reshape(most, -1).astype(np.float64) @ weights.T
    alone = np.concatenate([at(1, row) for row in range(most)])
    for many in isa.rows:
        found = at(many)
        if np.abs(right).max() < 2**22:
            np.testing.assert_array_equal(found, right[:many])
        np.testing.assert_allclose(found, right[:many], atol=1e-5 * np.abs(right).max())
        np.testing.assert_array_equal(found, alone[:many])
        np.testing.assert_array_equal(at(many, most - many), alone[most - many :])


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("Q4_K", {"avx512vnni", "avx2", "dotprod"}),  # large registers, small ones, and lanes
        *(pytest.param(name, set(ISAS), marks=pytest.mark.large) for name in ("Q4_K", "Q6_K", "Q8_0")),
    ],
)
def test_all_sets_give_the_same_bits(name: str, sets: set[str]) -> None:
    """Those that round a multiply-add once: the same integers, the same floats in the same order."""
    raw = random_rows(name, 20, 512)
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    found = [multiplied(isa, name, raw, x, 3) for isa in EVERY if isa.fused and isa.name in sets]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("name", QUANTISED)
@settings(max_examples=5, deadline=None)
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


@kernel
def _quantise(x, work):  # type: ignore[no-untyped-def]
    for row in range(x.shape[0]):
        quantise(x[row], INT16 | INT8, 0, row, x.shape[0], work.input)


def room(rows: int, columns: int) -> Work:
    shape = Shape(1, columns, 1, 1, 16, columns, 1, 1e-5, 0)
    return make_work((shape,), rows, 1)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q5_0", "BF16"])
@pytest.mark.parametrize("activations", ["int8", "int16"])
def test_any_number_of_rows_in_tiles(name: str, activations: Activations) -> None:
    matrix = from_file(name, random_rows(name, 50, 768))
    x = np.random.default_rng(0).standard_normal((45, 768)).astype(np.float32)
    right = x @ matrix.floats().astype(np.float64).T
    near = 1e-2 if activations == "int8" else 1e-4
    alone = np.concatenate([through_work(matrix, row[None], activations) for row in x])
    assert np.abs(alone - right).max() <= near * np.abs(right).max()
    for rows in (5, 7, 8, 9, 16, 17, 31, 45):
        np.testing.assert_array_equal(through_work(matrix, x[:rows], activations), alone[:rows])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), min_size=64, max_size=64),
    st.sampled_from([32, 64]),
)
def test_int16_keeps_a_row_to_one_part_in_65000(numbers: list[float], length: int) -> None:
    x = np.array([numbers[:length]], np.float32)
    work = room(1, length)
    _quantise(x, work)
    level = work.input.scales[0]
    back = np.empty(length)
    back.reshape(-1, 32)[:, ORDER] = work.input.integers[:length].reshape(-1, 32).astype(np.float64) * level
    assert np.abs(back - x[0]).max() <= max(0.51 * np.abs(x).max() / 32767, 1e-30)
    found = work.input.sums[: length // 32 * SUMS].reshape(-1, SUMS, 1)
    whole = found[:, 0].copy().view(np.float32) * level
    np.testing.assert_allclose(whole[:, 0], back.reshape(-1, 32).sum(1), rtol=1e-4, atol=1e-30 + 1e-3 * level)
    assert (found[:, 1:].sum(axis=1) == -32 * found[:, 0].copy().view(np.float32)).all()


def test_int8_keeps_a_block_to_one_part_in_250() -> None:
    x = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32)
    x[0, 32:64] = 0
    x[1, 40] = 1e30
    x[2, :32] *= 1e-20
    for row in x:
        work = room(1, 96)
        _quantise(row[None], work)
        numbers = work.input.bytes[:96].reshape(3, 32).astype(np.int32)
        scales = work.input.byte_scales[:3]
        most = np.abs(row.reshape(3, 32)).max(1)
        back = (numbers * scales[:, None].astype(np.float64)).reshape(-1)
        assert (np.abs(back - row).reshape(3, 32).max(1) <= 0.501 * most / 127).all()
        sums = work.input.byte_sums[: 3 * BYTE_SUMS].reshape(3, BYTE_SUMS)
        halves = numbers.reshape(3, 2, 16).sum(2)
        np.testing.assert_array_equal(sums[:, 1:3], -32 * halves)
        np.testing.assert_array_equal(sums[:, 3].copy().view(np.int16).reshape(3, 2), halves)
        np.testing.assert_array_equal(
            sums[:, 0].copy().view(np.float32), halves.sum(1).astype(np.float32) * scales
        )


@pytest.mark.parametrize("activations", ["int8", "int16"])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(broken: float, activations: Activations) -> None:
    x = np.ones((2, 256), np.float32)
    x[0, 7] = broken
    for name in ("Q8_0", "Q4_1", "Q6_K", "F32"):
        found = through_work(from_file(name, random_rows(name, 3, 256)), x, activations)
        assert not np.isfinite(found[0]).any()
        assert np.isfinite(found[1]).all()


@pytest.mark.large  # compiled for speed alone: what they compute is tested above
@pytest.mark.parametrize(
    ("name", "cpu", "triple", "expected"),
    [
        ("avx512vnni", "icelake-server", "x86_64-unknown-linux-gnu", "vpdpwssd"),
        ("avx512", "skylake-avx512", "x86_64-unknown-linux-gnu", "vpmaddwd"),
        ("avxvnni", "alderlake", "x86_64-unknown-linux-gnu", "{vex} vpdpwssd"),
        ("avx2", "haswell", "x86_64-unknown-linux-gnu", "vpmaddwd"),
        ("i8mm", "neoverse-v1", "aarch64-unknown-linux-gnu", "usdot"),
        ("dotprod", "neoverse-n1", "aarch64-unknown-linux-gnu", "sdot"),
        ("neon", "cortex-a72", "aarch64-unknown-linux-gnu", "mla"),
        ("generic", "x86-64", "x86_64-unknown-linux-gnu", "pmaddwd"),
    ],
)
def test_other_processors_get_their_instructions(name: str, cpu: str, triple: str, expected: str) -> None:
    isa = ISAS[name]
    machine = target_machine(isa, cpu, triple)
    form: Activations = "int8" if isa.octets.endswith("dot") else "int16"
    text = machine.emit_assembly(compiled(build("Q4_K", isa, form, (isa.most,)), machine))
    assert text.replace("\t", " ").count(expected) >= 16 * 4
    registers = {"avx512vnni": "%zmm31", "avx512": "%zmm31", "generic": "%xmm15"}
    assert registers.get(name, "v31" if "aarch64" in triple else "%ymm15") in text
    if name in ("avxvnni", "avx2"):
        assert "zmm" not in text
        assert "%ymm16" not in text


# Whole forwards

SCRIPT = """
import sys, numpy as np
from hierchat.jit import INSTRUCTIONS
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.formats.blocks import pack
from tests.testing.tiny import block_model, random_tokens, tiny_model
target = CpuRunner(block_model(tiny_model("qwen3"), lambda w: pack(w, 4)), context_length=512, threads=2).open()
assert target.runner.exact, "rows mix"
np.save(sys.argv[1], target.forward(random_tokens(150)[:100], range(-1, 99)))
print(INSTRUCTIONS)
"""


def run_with(instructions: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that computes with these instructions."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "HIERCHAT_INSTRUCTIONS": instructions, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)


@pytest.mark.large  # compiling all that a set needs takes half a minute
def test_every_set_agrees_with_the_best(tmp_path: Path) -> None:
    logits = []
    for name in HERE:
        done = run_with(name, SCRIPT, f"{tmp_path / name}.npy")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == name
        logits.append(np.load(tmp_path / f"{name}.npy"))
    for found in logits[1:]:
        np.testing.assert_allclose(found, logits[0], atol=2e-4 * np.abs(logits[0]).max())


def test_an_unknown_set_is_refused() -> None:
    lacking = [name for name in INSTRUCTION_SETS if name not in HERE] or ["sse9"]
    done = run_with(lacking[0], "import hierchat.jit")
    assert done.returncode != 0
    assert "this processor can do" in done.stderr
