"""The CUDA kernels without a GPU: interpreted against plain torch, and compiled for several devices."""

import itertools

import pytest
import torch

from hierchat.engine.cuda.row_attention import StaticSegment, attend_plainly
from tests.engine.test_packed import compiled, interpret

pytest.importorskip("triton")

PARENTS = [-1, 0, 0, 2, 1, -1]
SHAPES = [(4, 2, 16), (9, 3, 64), (3, 1, 80)]
"""Heads, key-value heads, numbers of a head."""


def compare(where: str, tolerances: dict[torch.dtype, float], shapes: list[tuple[int, int, int]]) -> None:
    """The kernels against plain torch in float32, and a pair of rows against itself among others, at another view."""
    from hierchat.engine.cuda.triton_attention import SPLIT, attend

    def filled(width: int, device: str, begin: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        segment = StaticSegment(width, torch.device(device))
        segment.fill([1] * len(PARENTS), PARENTS, start, begin)
        return segment.positions, segment.start, segment.paths

    torch.manual_seed(0)
    starts = (0, 60, SPLIT - 2, 2 * SPLIT - 1)
    for dtype, (heads, kv, width), start in itertools.product(tolerances, shapes, starts):
        keys, values = torch.randn(2, kv, start + 40, width, device=where).to(dtype)
        query = torch.randn(8, heads, width, device=where).to(dtype).transpose(0, 1)  # as transformers' is
        out = attend(query, keys, values, *filled(8, where), 3 * SPLIT, width**-0.5)
        given = [one.cpu().float() for one in (query, keys, values)]
        expected = attend_plainly(*given, *filled(8, "cpu"), width**-0.5)
        assert (out.cpu().float() - expected).abs().max() < tolerances[dtype], (dtype, heads, width, start)
        pair = attend(query[:, 4:6], keys, values, *filled(2, where, 4), 4 * SPLIT, width**-0.5)
        assert torch.equal(pair, out[4:6]), (dtype, heads, width, start)


def test_the_kernels_compute_what_is_said_plainly() -> None:
    interpret(
        __name__,
        "compare('cpu', {torch.float32: 1e-5}, SHAPES[1:]); compare('cpu', {torch.float16: 4e-3}, SHAPES[:1])",
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int, dtype: str) -> None:
    from hierchat.engine.cuda import triton_attention

    sizes = {"GROUP": 3, "WIDTH": 64, "PADDED": 64, "TILE": 16, "SPLIT": 512, "BLOCK": 64}
    kinds = {"query": dtype, "keys": dtype, "values": dtype, "out": dtype, "positions": "i64", "start": "i64"}
    kinds |= {"paths": "i64", "sums": "fp32", "bests": "fp32", "totals": "fp32"}
    for kernel in (triton_attention._split, triton_attention._join):
        assert compiled(kernel, kinds, sizes, capability)
