"""The kernels for products of rows with experts that they chose, interpreted and compiled."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hierchat.engine.cuda.packed import FORMATS, pack
from tests.engine.test_packed import (
    KINDS,
    compiled,
    dequantized,
    dot_in_order,
    error,
    interpret,
    random_blocks,
)

EXPERTS, ACTIVE, ROWS = 6, 3, 36
"""The first expert gets more rows than a tile has, the last one none."""


def chosen_by(rows: int) -> torch.Tensor:
    torch.manual_seed(1)
    others = torch.stack([1 + torch.randperm(EXPERTS - 2)[: ACTIVE - 1] for _ in range(rows)])
    return torch.cat([torch.zeros(rows, 1, dtype=torch.int64), others], 1).flip(1)


def compare(where: str, names: list[str], tolerance: float, width: int) -> None:
    """Products and their weighted sum against float64, and rows against themselves among fewer rows, and with one
    expert only."""
    from hierchat.engine.cuda import triton_blocks
    from hierchat.engine.cuda.triton_blocks import grouped, multiply

    if where == "cpu":
        from triton.runtime.interpreter import InterpreterBuilder

        InterpreterBuilder.create_dot = dot_in_order
    for name in names:
        triton_blocks.SPAN, triton_blocks.FEW = max(FORMATS[name].step, 128), 32
        raw = random_blocks(name, 256 if FORMATS[name].step == 256 else 192, EXPERTS * width)
        stack, floats = pack(name, raw, where, torch.float32), dequantized(name, raw)
        chosen, x = chosen_by(ROWS).to(where), torch.randn(ROWS, stack.inputs, device=where)
        wide = multiply(x, stack, routing=grouped(chosen, EXPERTS)).view(ROWS, ACTIVE, width)
        for row, place in itertools.product(range(ROWS), range(ACTIVE)):
            weights = floats.reshape(EXPERTS, width, -1)[int(chosen[row, place])]
            assert error(wide[row, place][None], x[row][None], weights) < tolerance, (name, row)
        alone = multiply(x, pack(name, raw[:width], where, torch.float32))
        assert torch.equal(wide[:, chosen[0].tolist().index(0)], alone), name
        for rows in (slice(0, 1), slice(9, 36)):
            found = multiply(x[rows], stack, routing=grouped(chosen[rows], EXPERTS))
            assert torch.equal(found, wide[rows].flatten(0, 1)), (name, rows)
        each, shares = torch.randn(ROWS * ACTIVE, stack.inputs, device=where), torch.rand(ROWS, ACTIVE)
        routing = grouped(chosen, EXPERTS)
        found = multiply(each, stack, routing=routing).view(ROWS, ACTIVE, width)
        assert torch.equal(
            found[:, 1], multiply(each[1::ACTIVE], stack, routing=grouped(chosen[:, 1:2], EXPERTS))
        )
        bias = torch.randn(EXPERTS, width, device=where)
        for added, also in ((None, found), (bias, found + bias[chosen])):
            first, second, third = (also * shares.to(where)[..., None]).unbind(1)
            summed = multiply(each, stack, added, routing=routing, weights=shares.to(where))
            assert torch.equal(summed, first + second + third), name
            assert torch.equal(multiply(each, stack, added, routing=routing), also.flatten(0, 1)), name
        near(
            summed[5],
            each[5 * ACTIVE :][:ACTIVE],
            floats.reshape(EXPERTS, width, -1),
            bias,
            chosen[5],
            shares[5],
        )


def near(
    found: torch.Tensor,
    x: torch.Tensor,
    weights: NDArray[np.float32],
    bias: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
) -> None:
    """The weighted sum of one row's products with their biases, against float64."""
    own, its_bias, rows, parts = (one.double().cpu() for one in (found, bias[chosen], x, shares))
    products = torch.from_numpy(weights)[chosen.cpu()].double() @ rows[..., None]
    torch.testing.assert_close(
        own, (parts[:, None] * (products[..., 0] + its_bias)).sum(0), rtol=1e-4, atol=1e-4
    )


def test_the_kernel_computes_what_gguf_reads_and_neither_rows_nor_experts_mix() -> None:
    pytest.importorskip("triton")
    interpret(__name__, "tiles_are_right(); compare('cpu', ['Q4_1', 'Q4_K', 'MXFP4'], 1e-6, 20)")


def tiles_are_right() -> None:
    """In any routing each pair is in one tile, with pairs of the same expert only."""
    from hierchat.engine.cuda.triton_blocks import ROWS, grouped

    for rows, experts, active in ((1, 20, 8), (3, 5, 5), (70, 9, 2)):
        chosen = torch.rand(rows, experts).topk(active, dim=1).indices
        tiles = grouped(chosen, experts).tiles
        assert tiles.shape == (min(rows * active, rows * active // ROWS + experts), ROWS)
        assert sorted(tiles[tiles >= 0].tolist()) == list(range(rows * active))
        for tile in tiles:
            assert len(chosen.flatten()[tile[tile >= 0].long()].unique()) <= 1


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile(capability: int) -> None:
    pytest.importorskip("triton")
    from hierchat.engine.cuda import triton_blocks

    fixed = {"CHOSEN": True, **triton_blocks.constants(FORMATS["Q4_K"], 4096)}
    assert "mma" in compiled(triton_blocks._multiply, KINDS, fixed, capability)
    fixed = {"EXPERTS": 128, "PAIRS": triton_blocks.PAIRS, "ROWS": triton_blocks.ROWS}
    assert "st.global" in compiled(triton_blocks._group, KINDS, fixed, capability)
    kinds = KINDS | {"bias": "bf16", "weights": "bf16", "out": "bf16"}
    for chosen, biased in ((True, True), (True, False), (False, True)):
        fixed = {"CHOSEN": chosen, "BIASED": biased, "WEIGHTED": chosen, "JOINED": triton_blocks.JOINED}
        assert "st.global" in compiled(triton_blocks._join, kinds, fixed, capability)
