"""Matrices in blocks on a device: their layout, and the kernel that multiplies by them, interpreted and compiled."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from hierchat.engine.cuda.packed import FORMATS, pack
from hierchat.models.formats.layouts import LAYOUTS

TYPES = [name for name in FORMATS if name != "PLAIN"]
OUTPUTS = 70
"""No whole number of programs, nor of groups."""


def random_blocks(name: str, inputs: int, rows: int = OUTPUTS) -> NDArray[np.uint8]:
    """Rows of a file, uint8 [rows, bytes], with every number that its fields may hold and scales that are numbers."""
    random, layout = np.random.default_rng(inputs), LAYOUTS[name]
    raw = random.integers(0, 256, (rows, inputs // layout.weights, layout.size), dtype=np.uint8)
    for number, field in enumerate(layout.head):
        if field.size == 2 and (name, number) != ("IQ4_XS", 1):
            halves = random.normal(0, 0.01, raw.shape[:2]).astype(np.float16)
            raw[..., field.offset : field.offset + 2] = halves[..., None].view(np.uint8)
    if name == "MXFP4":
        raw[..., 0] = random.integers(110, 130, raw.shape[:2])
    return raw.reshape(rows, -1)


def dequantized(name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The weights as the gguf package reads them."""
    return np.asarray(quants.dequantize(raw, GGMLQuantizationType[name]), np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_a_matrix_has_the_files_size_and_its_weights_to_the_bit(name: str) -> None:
    raw = random_blocks(name, 512)
    matrix = pack(name, raw, "cpu", torch.bfloat16)
    assert (matrix.name, matrix.nbytes) == (name, raw.nbytes)
    assert np.array_equal(matrix.floats().numpy(), dequantized(name, raw))
    some = torch.tensor([69, 3, 3])
    assert torch.equal(matrix.floats(some), matrix.floats()[some])


def test_rows_go_where_they_belong_also_in_several_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierchat.engine.cuda.packed._AT_ONCE", 11 * 512)
    raw, order = random_blocks("Q6_K", 512), np.random.default_rng(1).permutation(OUTPUTS)
    found = pack("Q6_K", raw, "cpu", torch.bfloat16, order).floats().numpy()
    assert np.array_equal(found, dequantized("Q6_K", raw)[order])


@pytest.mark.parametrize(("name", "inputs"), [("Q3_K", 256), ("Q8_0", 96), ("BF16", 64), ("F32", 48)])
def test_a_type_without_a_kernel_has_16_bits(name: str, inputs: int) -> None:
    raw = random_blocks(name, inputs)
    if name in ("BF16", "F32"):
        floats = np.random.default_rng(0).normal(size=(OUTPUTS, inputs)).astype(np.float32)
        raw = quants.quantize(floats, GGMLQuantizationType[name]).view(np.uint8)
    if inputs % 32:
        with pytest.raises(ValueError, match="rows of 48 weights"):
            pack(name, raw, "cpu", torch.bfloat16)
        return
    matrix = pack(name, raw, "cpu", torch.bfloat16)
    assert (matrix.name, matrix.nbytes) == ("PLAIN", 2 * OUTPUTS * inputs)
    assert torch.equal(matrix.floats(), torch.from_numpy(dequantized(name, raw)).bfloat16().float())


def error(found: torch.Tensor, x: torch.Tensor, weights: NDArray[np.float32]) -> float:
    """The largest error of a product against float64, over the sizes of what was added."""
    exact = x.double().cpu() @ torch.from_numpy(weights).double().T
    sizes = x.double().cpu().abs() @ torch.from_numpy(weights).double().abs().T
    return float(((found.double().cpu() - exact).abs() / sizes).max())


def compare(
    where: str, names: list[str], tolerances: dict[torch.dtype, float], outputs: int = OUTPUTS
) -> None:
    """The kernel against float64, and rows against themselves among 1, 2, 7, 32 and more, at other places."""
    from hierchat.engine.cuda import triton_blocks

    if where == "cpu":
        from triton.runtime.interpreter import InterpreterBuilder

        InterpreterBuilder.create_dot = dot_in_order
    for name, (dtype, tolerance) in itertools.product(names, tolerances.items()):
        file_type, inputs = (
            "Q3_K" if name == "PLAIN" else name,
            {64: 192, 128: 384}.get(FORMATS[name].step, 512),
        )
        triton_blocks.SPAN, triton_blocks.FEW = max(FORMATS[name].step, 128), 32
        raw = random_blocks(file_type, 512 if name == "PLAIN" else inputs, outputs)
        matrix = pack(file_type, raw, where, dtype)
        assert matrix.name == name
        weights = matrix.floats().cpu().numpy() if name == "PLAIN" else dequantized(name, raw)
        torch.manual_seed(0)
        bias, x = (torch.randn(*shape).to(where, dtype) for shape in ((outputs,), (75, matrix.inputs)))
        wide = triton_blocks.multiply(x, matrix)
        assert error(wide, x, weights) < tolerance, (name, dtype, error(wide, x, weights))
        for rows in (slice(0, 1), slice(37, 39), slice(60, 67), slice(10, 42)):
            found = triton_blocks.multiply(x[rows], matrix)
            assert torch.equal(found, wide[rows]), (name, dtype, rows)
        if dtype == torch.float32:
            assert torch.equal(triton_blocks.multiply(x[:2], matrix, bias), wide[:2] + bias), name


def dot_in_order(self: Any, a: Any, b: Any, total: Any, *unused: Any) -> Any:
    """The interpreter's product of tiles, summed in order: numpy's own depends on a row's place in its tile."""
    from triton.runtime.interpreter import TensorHandle

    left, right = a.data.astype(np.float32), b.data.astype(np.float32)
    out = total.data.copy()
    for column in range(left.shape[1]):
        out += left[:, column, None] * right[column]
    return TensorHandle(out, total.dtype.scalar)


def interpret(module: str, call: str) -> None:
    """Call a function of a module in another process: triton reads the variable once."""
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import *; {call}"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def compiled(kernel: Any, kinds: dict[str, str], fixed: dict[str, Any], capability: int) -> str:
    """What a device gets. `kinds`: of what pointers point to; all else are whole numbers."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {
        name: "constexpr" if name in fixed else f"*{kinds[name]}" if name in kinds else "i32"
        for name in kernel.arg_names
    }
    signature |= dict.fromkeys(signature.keys() & {"scale", "unit", "cap"}, "fp32")
    constants = {(at,): fixed[name] for at, name in enumerate(kernel.arg_names) if name in fixed}
    source = ASTSource(kernel, signature, constants)
    return str(compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"])


def test_the_kernel_computes_what_gguf_reads_and_rows_never_mix() -> None:
    pytest.importorskip("triton")
    interpret(
        __name__,
        "compare('cpu', list(FORMATS), {torch.float32: 1e-6}, 20); compare('cpu', ['Q4_K'], {torch.float16: 1e-3})",
    )


KINDS = {
    "x": "fp16",
    "lifts": "fp16",
    "units": "fp32",
    "codes": "i32",
    "above": "i16",
    "halves": "i16",
    "words": "i32",
}
KINDS |= {"levels": "i16", "chosen": "i64", "tiles": "i32", "sums": "fp32"}
"""What the kernel's pointers point to."""


@pytest.mark.parametrize(("capability", "names"), [(80, ("Q4_K", "PLAIN")), (90, ("Q6_K",))])
def test_the_kernel_compiles(capability: int, names: tuple[str, ...]) -> None:
    pytest.importorskip("triton")
    from hierchat.engine.cuda import triton_blocks

    for name in names:
        fixed = {"CHOSEN": False, **triton_blocks.constants(FORMATS[name], 4096)}
        kinds = KINDS | (dict.fromkeys(("x", "codes"), "bf16") if name == "PLAIN" else {})
        assert "mma" in compiled(triton_blocks._multiply, kinds, fixed, capability)
    kinds = {"x": "bf16", "scaled": "fp16", "sums": "fp16", "units": "fp32"}
    fixed = {"STEP": 256, "SPAN": triton_blocks.SPAN, "LIFTS": triton_blocks.LIFTS}
    assert "st.global" in compiled(triton_blocks._scale_down, kinds, fixed, capability)
