"""The CPU engine: threads, memory, configurations, routed experts; its logits, and with them its rotary tables, are
compared where models are loaded, in tests/models/load/test_architectures.py."""

import gc
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from hierchat.engine.cpu.forward import Team
from hierchat.engine.cpu.phases import choose, gated
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.engine import OutOfMemory
from hierchat.models.architectures.families import ACTIVATIONS, CLAMPED
from hierchat.models.architectures.model_config import (
    layer_heads,
    rope_tables,
    rotary_layouts,
    slot_size,
    windows,
)
from hierchat.models.formats.blocks import pack
from hierchat.models.runnable import step, unsupported
from tests.testing.architectures import CONFIGS, SHAPE, model_of
from tests.testing.tiny import CONTEXT, block_model, random_tokens, tiny_model


@pytest.mark.parametrize("name", ["qwen3, norms", "qwen3 moe", "gpt-oss", "gemma3, a wide window"])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    """Also where a helper never comes: tiles for three, one there."""
    blocks = block_model(model_of(CONFIGS[name]), lambda floats: pack(floats, 4))
    target = CpuRunner(blocks, context_length=CONTEXT, threads=3).open()
    prompt, tree = random_tokens(140), [-1, 0, 0, 1, -1, 4, 2]
    found = []
    for threads, told in ((1, 1), (2, 2), (3, 3), (1, 3)):
        target.runner.team = team = Team(threads)
        team.threads = told
        target.rollback(0)
        target.read(prompt)
        found.append(np.asarray(target.forward(random_tokens(7, 1), tree)).copy())
        team.close()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_replaced_model_leaves_the_memory() -> None:
    before = set(threading.enumerate())
    target = CpuRunner(block_model(tiny_model()), context_length=CONTEXT, threads=3).open()
    target.forward([1, 2], [-1, 0])
    team, keys = target.runner.team, weakref.ref(target.runner.slots[0].keys)
    helpers = [thread for thread in threading.enumerate() if thread not in before]
    assert len(helpers) == 2
    del target
    gc.collect()
    for thread in helpers:
        thread.join(20)
    assert not any(thread.is_alive() for thread in helpers)
    assert keys() is None
    assert team.threads == 3


def test_blocks_that_do_not_fit_are_refused_and_full_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CpuRunner(block_model(tiny_model()), context_length=128, threads=1).open()
    with pytest.raises(ValueError, match="at most 128 at a time"):
        target.forward([1] * 129, range(-1, 128))
    with pytest.raises(ValueError, match="none of the model's 97"):
        target.forward([97], [-1])
    for _ in range(2):
        target.read([1] * 128)
    with pytest.raises(ValueError, match="behind 256 does not fit"):
        target.forward([1], [-1])
    assert len(target.tokens) == 256

    def run(job: object) -> None:
        raise MemoryError

    target.rollback(0)
    monkeypatch.setattr(target.runner.team, "run", run)
    with pytest.raises(OutOfMemory, match="context_length"):
        target.forward([1], [-1])


def test_what_it_cannot_compute_is_named() -> None:
    config = LlamaConfig(**SHAPE).to_dict()
    assert unsupported(config) is None
    of_another_kind = str(unsupported({**config, "model_type": "gpt2"}))
    assert of_another_kind.startswith("architecture gpt2 (known are exaone4, gemma2, gemma3_text, ")
    assert "activation" in str(unsupported({**config, "hidden_act": "gelu"}))
    assert "biases" in str(unsupported({**config, "attention_bias": True}))
    assert "no whole blocks" in str(unsupported({**config, "intermediate_size": 100}))
    assert "layers of conv" in str(unsupported({**config, "layer_types": ["full_attention", "conv"]}))
    gemma, inputs, experts = (CONFIGS[name].to_dict() for name in ("gemma3", "gemma4", "gemma4, experts"))
    assert unsupported(gemma) is None
    assert "behind" in str(unsupported({**gemma, "use_bidirectional_attention": True}))
    assert "behind" in str(unsupported({**inputs, "use_bidirectional_attention": "all"}))
    assert "are chosen" in str(unsupported({**experts, "top_k_experts": 0}))
    assert "no whole blocks" in str(unsupported({**experts, "moe_intermediate_size": 30}))
    assert "no whole blocks" in str(unsupported({**inputs, "hidden_size_per_layer_input": 30}))
    assert "inputs of layers beside" in str(unsupported({**experts, "hidden_size_per_layer_input": 32}))


@pytest.mark.parametrize("name", ["mistral, window", "qwen2, window"])
def test_an_older_configuration_says_the_same(name: str) -> None:
    """Without the kinds of layers."""
    config = CONFIGS[name].to_dict()
    old = {key: value for key, value in config.items() if key not in ("layer_types", "rope_parameters")}
    assert windows(old) == windows(config)
    assert len(set(windows(old))) == (1 if name == "mistral, window" else 2)
    for one, other in zip(rope_tables(old, 9), rope_tables(config, 9), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["gemma4", "gemma4, large", "gemma4, experts"])
def test_two_ways_to_say_the_heads(name: str) -> None:
    """What transformers saves and what was published."""
    saved = CONFIGS[name].to_dict()
    published = {key: value for key, value in saved.items() if key != "per_layer_config"}
    published |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    published |= {"use_bidirectional_attention": "vision"}
    assert layer_heads(published) == layer_heads(saved)
    assert slot_size(published) == slot_size(saved)
    assert rotary_layouts(published) == rotary_layouts(saved)
    assert unsupported(published) is unsupported(saved) is None
    assert step(published, own=True) == "kernels"


def chosen(
    scores: Sequence[float], active: int, by_active: bool, bias: Sequence[float] = ()
) -> tuple[list[int], np.ndarray]:
    ranks, shares = np.zeros(active, np.int64), np.zeros(active, np.float32)
    choose(np.array(scores, np.float32), by_active, np.array(bias, np.float32), ranks, shares)
    return ranks.tolist(), shares


@settings(max_examples=30, deadline=None)
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


@settings(max_examples=30, deadline=None)
@given(scores=st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=20), by_active=st.booleans())
def test_a_bias_counts_in_the_choice_alone(scores: list[float], by_active: bool) -> None:
    """Routers of the logistic function, as LFM2 and Nemotron-H have them."""
    bias = np.random.default_rng(len(scores)).uniform(-1, 1, len(scores))
    ranks, shares = chosen(scores, 2, by_active, bias)
    weights = 1 / (1 + np.exp(-np.array(scores, np.float64)))
    biased = weights + bias
    assert biased[ranks].min() >= np.sort(biased)[-2] - 1e-5
    whole = weights[ranks].sum() if by_active else 1
    np.testing.assert_allclose(shares, weights[ranks] / whole, rtol=1e-3, atol=1e-5)


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


@pytest.mark.parametrize(("name", "weights"), [("llama", "mlp.up_proj"), ("qwen3 moe", "mlp.gate")])
def test_broken_weights_give_no_number_and_break_no_memory(name: str, weights: str) -> None:
    model = model_of(CONFIGS[name])
    model.model.layers[1].get_submodule(weights).weight.fill_(float("nan"))
    target = CpuRunner(block_model(model), context_length=CONTEXT).open()
    assert np.isnan(np.asarray(target.forward([1, 2, 3], [-1, 0, 1]))).all()
