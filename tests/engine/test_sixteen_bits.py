"""Modules of 16 bits with our products in place of the library's, with torch's processor in a card's place."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import plain_kernels
from hierchat.engine.cuda import kernels, sixteen_bits
from hierchat.engine.cuda.cuda_runner import REGIMES, CudaRunner
from hierchat.engine.cuda.graphs import Graphs
from hierchat.engine.cuda.packed_experts import PackedExperts
from hierchat.engine.cuda.packed_modules import PackedMatrix, is_packed
from hierchat.engine.cuda.sixteen_bits import with_our_products
from hierchat.engine.torch.torch_runner import precision
from tests.engine.test_cuda_runner import pretended
from tests.gguf_files.models import FAMILIES, VOCABULARY, tiny_module
from tests.testing.architectures import CONFIGS, model_of
from tests.testing.tiny import random_tokens

NAMES = [
    "llama 3, tied", "qwen2, biases", "gemma3", "qwen3 moe", "gpt-oss", "gemma4, experts",
    "qwen35", "granitehybrid, experts", "nemotron_h_moe",
]  # fmt: skip


@pytest.fixture(autouse=True)
def takes(monkeypatch: pytest.MonkeyPatch) -> dict[type, float]:
    """Milliseconds of a product by kind of layer."""
    times = {PackedMatrix: 1.0, nn.Linear: 2.0}
    monkeypatch.setattr(sixteen_bits, "_ms", lambda products, x: sum(times[type(one)] for one in products))
    return times


def tiny(name: str) -> Any:
    return tiny_module(name) if name in FAMILIES else model_of(CONFIGS[name], vocab_size=VOCABULARY)


def logits(module: Any) -> torch.Tensor:
    with torch.inference_mode():
        return module(torch.tensor([random_tokens(40, vocabulary=VOCABULARY)])).logits[0].float()


@pytest.mark.parametrize("name", NAMES)
def test_they_compute_what_the_module_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In floats, so that no rounding chooses another expert."""
    monkeypatch.setattr(sixteen_bits, "WIDTH", 4)
    module = tiny(name).eval().requires_grad_(False)
    expected = logits(module)
    with_our_products(module, None, None)
    assert is_packed(module)
    assert not any(type(part) is nn.Linear and part.in_features % 32 == 0 for part in module.modules())
    assert any(isinstance(part, PackedExperts) for part in module.modules()) == (
        "moe" in name or "experts" in name or "oss" in name
    )
    assert (logits(module) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_module_of_16_bits_keeps_its_precision_and_is_exact_at_once() -> None:
    module = tiny("qwen2, biases").to(torch.bfloat16).eval().requires_grad_(False)
    expected = logits(module)
    with_our_products(module, None, None)
    assert precision(module) == "bfloat16"
    assert (logits(module) - expected).abs().max() < 0.03 * expected.abs().max()
    runner = CudaRunner(module, context_length=200, graphs=Graphs(capture=pretended))
    assert (runner.exact, runner.quantum, runner.widest) == (True, *REGIMES[0])


@pytest.mark.parametrize("lack", ["slow", "slow prompts", "wrong", "broken", "kind"])
def test_where_they_do_not_pay_the_module_stays_as_it_is(
    lack: str, takes: dict[type, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    module = tiny("mixtral" if lack == "kind" else "qwen2, biases").to(torch.bfloat16)
    if lack == "slow":
        takes[PackedMatrix] = 2.1
    elif lack == "slow prompts":
        monkeypatch.setattr(sixteen_bits, "ROWS", {16: 1.0, 512: 0.4})
    elif lack != "kind":
        wrong = {"wrong": lambda *given: 1.1 * plain_kernels.multiply(*given), "broken": broken}[lack]
        monkeypatch.setitem(kernels.PLAIN, "multiply", wrong)
    with_our_products(module, None, None)
    assert not any(isinstance(part, PackedMatrix) for part in module.modules())


def test_the_answer_is_kept(takes: dict[type, float]) -> None:
    with_our_products(tiny("qwen3, norms").to(torch.bfloat16), "a card", "weights")
    takes[PackedMatrix] = 9.0
    for device, ours in (("a card", True), ("another", False)):
        module = tiny("qwen3, norms").to(torch.bfloat16)
        with_our_products(module, device, "weights")
        assert is_packed(module) == ours
