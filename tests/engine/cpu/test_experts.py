"""Several experts in a layer: who wakes whom, and replies that drafts do not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.cpu.experts import choose
from hierchat.engine.cpu.phases import gated
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.local import LocalEngine
from hierchat.models.architectures.families import ACTIVATIONS, CLAMPED
from hierchat.models.formats.blocks import pack
from hierchat.models.runnable import step
from tests.engine.drafters import Adversary, Buried, Noise, Oracle, TreeDrafter
from tests.testing.architectures import CONFIGS, model_of
from tests.testing.tiny import CONTEXT, block_model, fresh_steps, random_tokens, text_of, tokens_of

MODELS = ("qwen3 moe", "gpt-oss")
DRAFTERS: dict[str, Callable[[Sequence[int]], Proposer]] = {
    "noise": lambda reply: Noise(nodes=12),
    "random trees": lambda reply: TreeDrafter(),
    "oracle": Oracle,
    "adversary": Adversary,
    "buried": Buried,
}


def chosen(scores: Sequence[float], active: int, by_active: bool) -> tuple[list[int], np.ndarray]:
    ranks, shares = np.zeros(active, np.int64), np.zeros(active, np.float32)
    choose(np.array(scores, np.float32), by_active, ranks, shares)
    return ranks.tolist(), shares


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=20),
    active=st.integers(1, 20),
    by_active=st.booleans(),
)
def test_the_best_are_woken_and_weighed(scores: list[float], active: int, by_active: bool) -> None:
    active = min(active, len(scores))
    ranks, shares = chosen(scores, active, by_active)
    assert ranks == sorted(range(len(scores)), key=lambda expert: -scores[expert])[:active]  # stable
    given_ = np.array(scores)
    weights = np.exp(given_ - given_.max())
    whole = weights[ranks].sum() if by_active else weights.sum()
    np.testing.assert_allclose(shares, weights[ranks] / whole, rtol=1e-4, atol=1e-30)


def test_the_gate_of_gpt_oss() -> None:
    """Gates and ups far beyond the clamp, and what is no number."""
    gates = np.linspace(-60, 60, 64, dtype=np.float32)
    ups = np.random.default_rng(0).uniform(-20, 20, 64).astype(np.float32)
    gates[7], ups[9] = np.nan, np.nan
    out = np.zeros(64, np.float32)
    gated(ACTIVATIONS.index(CLAMPED), gates.ctypes.data, ups.ctypes.data, 64, out.ctypes.data)
    gate, up = np.minimum(gates.astype(np.float64), 7), np.clip(ups.astype(np.float64), -7, 7)
    np.testing.assert_allclose(out, gate / (1 + np.exp(-1.702 * gate)) * (up + 1), rtol=1e-5, atol=1e-30)


def test_scores_that_are_no_numbers_wake_experts_that_exist() -> None:
    for scores in ([np.nan] * 5, [1.0, np.nan, 3.0, np.nan, 2.0], [np.nan, 1.0, 2.0, 3.0, 4.0]):
        ranks, _ = chosen(scores, 3, True)
        assert len(set(ranks)) == 3
        assert set(ranks) <= set(range(5))
    assert np.isnan(chosen([np.nan] * 5, 3, False)[1]).all()


@pytest.fixture(scope="module", params=MODELS)
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    model = model_of(CONFIGS[request.param])
    runner = CpuRunner(block_model(model, lambda floats: pack(floats, 4)), context_length=CONTEXT, threads=2)
    assert runner.exact
    return LocalEngine(runner.open(), (), text_of)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_word(engine: LocalEngine, temperature: float) -> None:
    wanted = GenerationSettings(temperature=temperature, max_new_tokens=60, seed=5)
    prompt = random_tokens(140, 2)
    plain = tokens_of(fresh_steps(engine, prompt, wanted))
    assert len(plain) == 60
    for name, drafter in DRAFTERS.items():
        steps = fresh_steps(engine, prompt, wanted, drafter(plain))
        assert tokens_of(steps) == plain, name
        assert name != "oracle" or len(steps) < 20


def test_broken_weights_of_the_router_break_no_memory() -> None:
    model = model_of(CONFIGS["qwen3 moe"])
    model.model.layers[1].mlp.gate.weight.fill_(float("nan"))
    target = CpuRunner(block_model(model), context_length=CONTEXT).open()
    assert np.isnan(np.asarray(target.forward([1, 2, 3], [-1, 0, 1]))).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_forward_of_one_row_reads_what_is_awake(name: str) -> None:
    config = CONFIGS[name].to_dict()
    blocks = block_model(model_of(CONFIGS[name]), lambda floats: pack(floats, 8))
    experts, active = (12, 3) if name == "qwen3 moe" else (6, 2)
    several = sum(layer[place].nbytes for layer in blocks.layers for place in ("gate", "up", "down"))
    assert blocks.nbytes - blocks.row_bytes == several * (experts - active) // experts
    assert step(config, own=True) == "kernels"


def test_a_model_without_experts_is_read_as_a_whole() -> None:
    blocks = block_model(model_of(CONFIGS["llama"]))
    assert blocks.row_bytes == blocks.nbytes
