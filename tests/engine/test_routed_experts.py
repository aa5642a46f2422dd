"""Matrices in blocks and routed experts within modules of torch: what floats give, and a row's bits whatever stands
beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hierchat.engine.cpu.multiply import Multiplier, room
from hierchat.engine.torch import block_linear
from hierchat.engine.torch.block_linear import BlockEmbedding, BlockLinear, by_expert
from hierchat.engine.torch.torch_runner import TorchRunner
from hierchat.models.formats.block_model import Matrix
from hierchat.models.formats.blocks import Blocks, from_floats, pack
from tests.testing.families import tiny_family

ROWS = 41
KINDS = ("F32", "Q8_0", "Q4_1")
RANDOM = np.random.default_rng(0)


def blocks_of(kind: str, rows: int, columns: int) -> Blocks:
    floats = RANDOM.normal(size=(rows, columns)).astype(np.float32)
    return from_floats(floats) if kind == "F32" else pack(floats, 8 if kind == "Q8_0" else 4)


def rows_of(columns: int, *before: int) -> torch.Tensor:
    return torch.from_numpy(RANDOM.normal(size=(*before, columns)).astype(np.float32))


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Activations are rounded to sixteen bits."""
    assert (found - wanted).abs().max() < 2e-3 * wanted.abs().max()


def whole(matrix: Matrix) -> torch.Tensor:
    """[experts * outputs, inputs] in floats, for one piece."""
    return torch.from_numpy(matrix.pieces[0].floats())


@pytest.mark.parametrize("kind", KINDS)
def test_it_multiplies_as_floats_do_and_a_row_has_the_same_bits_whatever_stands_beside_it(kind: str) -> None:
    """With any number of threads; and where the same buffers held wider rows."""
    matrix, other = Matrix((blocks_of(kind, 200, 288),)), blocks_of("Q8_0", 20, 1024)
    x, bias = rows_of(288, ROWS), rows_of(200)
    together = BlockLinear(matrix, Multiplier(1), bias)(x)
    assert_close(together, x @ whole(matrix).T + bias)
    assert torch.equal(BlockLinear(matrix, Multiplier(2), bias)(x[None]), together[None])
    for threads in (1, 2, 3):
        multiplier = Multiplier(threads)
        linear = BlockLinear(matrix, multiplier, bias)
        for some in (slice(3, 4), slice(7, 20), slice(1, ROWS, 3), slice(0, ROWS)):
            assert torch.equal(linear(x[some]), together[some])
            BlockLinear(Matrix((other,)), multiplier)(rows_of(1024, 3))


def test_columns_and_pieces_in_another_order() -> None:
    columns, places = RANDOM.permutation(64), RANDOM.permutation(40)
    pieces = blocks_of("Q8_0", 24, 64), blocks_of("F32", 16, 64)
    x = rows_of(64, 5)
    found = BlockLinear(Matrix(pieces, places=places, columns=columns), Multiplier(2))(x)
    weights = np.concatenate([piece.floats() for piece in pieces])[places]
    assert_close(found, x[:, columns] @ torch.from_numpy(weights).T)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_get_their_own_rows(kind: str) -> None:
    matrix = Matrix((blocks_of(kind, 4 * 48, 64),), experts=4)
    experts, counts = (2, 0, 3), (1, 21, 5)
    begins = [0, *np.cumsum([room(count) for count in counts])[:-1].tolist()]
    x = rows_of(64, begins[-1] + room(counts[-1]))
    linear = BlockLinear(matrix, Multiplier(2))
    found = linear.by_expert(x, experts, begins, counts)
    for expert, begin, count in zip(experts, begins, counts, strict=True):
        own = whole(matrix).view(4, 48, 64)[expert]
        assert_close(found[begin : begin + count], x[begin : begin + count] @ own.T)
        alone = linear.by_expert(x[begin : begin + 1], [expert], [0], [1])
        assert torch.equal(found[begin], alone[0])


class Doubled(nn.Embedding):
    """One that does more than look up."""

    def forward(self, tokens: torch.Tensor) -> Any:
        return super().forward(tokens) * 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_restores_the_rows_of_the_tokens(kind: str) -> None:
    matrix = Matrix((blocks_of(kind, 50, 64),))
    tokens = torch.tensor([[4, 49, 4]])
    found = BlockEmbedding(Doubled(50, 64, device="meta"), matrix)(tokens)
    assert torch.equal(found, 2 * whole(matrix)[tokens])


FORMS = ("olmoe", "gpt_oss", "aria_text", "nemotron_h, experts")
"""Gate and product in one, side by side; neighbours, turned, with biases and a clamp; turned; without a gate."""
COUNT, ACTIVE = 40, 2


def module_of(kind: str) -> Any:
    return next(one for one in tiny_family(kind).modules() if hasattr(one, "has_post_expert_norm"))


def routed_rows(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, their experts and shares. Half of the rows wake the same experts."""
    random = torch.Generator().manual_seed(1)
    weight = module.down_proj
    hidden = weight.shape[2 if module.is_transposed else 1]
    rows = torch.randn(COUNT, hidden, generator=random)
    chosen = torch.rand(COUNT, module.num_experts, generator=random).argsort(dim=1)[:, :ACTIVE]
    chosen[COUNT // 2 :] = torch.tensor([2, 0])
    return rows, chosen, torch.rand(COUNT, ACTIVE, generator=random)


@pytest.fixture(params=FORMS)
def module(request: pytest.FixtureRequest) -> Any:
    return module_of(request.param)


@torch.inference_mode()
@pytest.mark.parametrize("part", [block_linear.PART, 64])
def test_experts_bring_what_they_did_and_the_same_bits_whatever_stands_beside_a_row(
    module: Any, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_linear, "PART", part)
    rows, chosen, shares = routed_rows(module)
    together = by_expert(module, rows, chosen, shares)
    torch.testing.assert_close(together, module(rows, chosen, shares), rtol=1e-4, atol=1e-5)
    for some in (slice(3, 4), slice(7, 20), slice(1, 40, 3), torch.arange(39, -1, -1)):
        assert torch.equal(by_expert(module, rows[some], chosen[some], shares[some]), together[some])


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["glm4_moe", "lfm2_moe", "granitemoe"])
def test_a_row_has_the_same_experts_and_shares_whatever_stands_beside_it(kind: str) -> None:
    """Though a sigmoid computes the last numbers of a tensor in another way than those before them."""
    model = tiny_family(kind)
    runner = TorchRunner(model, context_length=64, packed=False, quantum=1)
    router = next(one for one in model.modules() if type(one).__name__.lower().endswith("router"))
    others = (torch.zeros(4),) if kind == "lfm2_moe" else ()
    rows = torch.randn(1, 30, 64, generator=torch.Generator().manual_seed(2))[0]
    with runner._experts.segment(30):
        together = router(rows, *others)
    with runner._experts.segment(11):
        found = router(rows[7:20], *others)
    for one, other in zip(found, together, strict=True):
        assert len(one) == 13
        assert torch.equal(one[:11], other[7:18])
    torch.testing.assert_close(together, router(rows, *others))


@torch.inference_mode()
def test_rows_that_fill_up_wake_nobody() -> None:
    module = module_of("olmoe")
    rows, chosen, shares = routed_rows(module)
    module.down_proj[1:] = float("nan")
    chosen = torch.zeros_like(chosen)
    out = by_expert(module, rows, chosen[:5], shares[:5])
    assert torch.isfinite(out).all()
    assert out[:5].any(dim=1).all()
    assert not out[5:].any()


@torch.inference_mode()
def test_the_gate_of_a_shared_expert_goes_row_by_row() -> None:
    model = tiny_family("qwen2_moe")
    gate = next(one for name, one in model.named_modules() if name.endswith("shared_expert_gate"))
    TorchRunner(model, context_length=64, packed=False, quantum=1)
    out = gate(torch.randn(128, 64, generator=torch.Generator().manual_seed(1)))
    alone = torch.cat([torch.sigmoid(row[None]) for row in out])
    assert torch.equal(torch.sigmoid(out), alone)
