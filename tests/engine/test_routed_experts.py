"""Routed experts within modules of torch: what the module gives, and the same bits of a row in every segment."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hierchat.engine.torch import routed_experts
from hierchat.engine.torch.routed_experts import by_expert
from hierchat.engine.torch.torch_runner import TorchRunner
from tests.testing.families import tiny_family

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
@pytest.mark.parametrize("part", [routed_experts.PART, 64])
def test_experts_bring_what_they_did_and_the_same_bits_whatever_stands_beside_a_row(
    module: Any, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed_experts, "PART", part)
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
