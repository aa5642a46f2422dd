"""The CUDA kernels without a GPU: interpreted against plain torch, and compiled for several devices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

INTERPRETED = """
import torch
from hierchat.engine.cuda.row_attention import attend_plainly
from hierchat.engine.cuda.row_attention import StaticSegment
from hierchat.engine.cuda.triton_attention import SPLIT, attend

torch.manual_seed(0)
PARENTS = [-1, 0, 0, 2, 1, -1]
for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 4e-3)):
    for heads, kv, width in ((4, 2, 16), (9, 3, 64), (3, 1, 80)):
        for start in (0, 60, SPLIT - 2, 2 * SPLIT - 1):
            block = StaticSegment(8, torch.device("cpu"))
            block.fill([1] * len(PARENTS), PARENTS, start)
            keys, values = torch.randn(2, kv, start + 40, width).to(dtype)
            query = torch.randn(8, heads, width).to(dtype).transpose(0, 1)  # strided as transformers' is
            places = block.positions, block.start, block.paths
            view, scale = 3 * SPLIT, width**-0.5
            out = attend(query, keys, values, *places, view, scale)
            expected = attend_plainly(query, keys, values, *places, scale)
            assert (out - expected).abs().max() < tolerance, (dtype, heads, width, start)
            alone = StaticSegment(2, torch.device("cpu"))
            alone.fill([1] * len(PARENTS), PARENTS, start, begin=4)
            places = alone.positions, alone.start, alone.paths
            pair = attend(query[:, 4:6], keys, values, *places, 4 * SPLIT, scale)
            assert torch.equal(pair, out[4:6]), (dtype, heads, width, start)
print("equal")
"""


def test_the_kernels_compute_what_is_said_plainly() -> None:
    """Another process: triton reads the variable once."""
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int, dtype: str) -> None:
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hierchat.engine.cuda import triton_attention

    sizes = {"GROUP": 3, "WIDTH": 64, "PADDED": 64, "TILE": 16, "SPLIT": 512, "BLOCK": 64}
    kinds = {"query": dtype, "keys": dtype, "values": dtype, "out": dtype, "positions": "i64", "start": "i64"}
    kinds |= {"paths": "i64", "sums": "fp32", "bests": "fp32", "totals": "fp32"}
    for kernel in (triton_attention._split, triton_attention._join):
        signature = {
            name: "constexpr" if name in sizes else f"*{kinds[name]}" if name in kinds else "i32"
            for name in kernel.arg_names
        }
        if "scale" in signature:
            signature["scale"] = "fp32"
        fixed = {(at,): sizes[name] for at, name in enumerate(kernel.arg_names) if name in sizes}
        built = compile(ASTSource(kernel, signature, fixed), target=GPUTarget("cuda", capability, 32))
        assert built.asm["ptx"]
