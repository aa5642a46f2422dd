"""Models whose layers differ: larger heads in some, keys and values that layers share, inputs of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import Gemma4TextConfig

from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.architectures.model_config import layer_heads, slot_size, sources, tensors
from hierchat.models.architectures.rope import RotaryLayout, rotary_layouts
from hierchat.models.formats.assemble import whole
from hierchat.models.runnable import step, unsupported
from tests.testing.architectures import CONFIGS, model_of, tensors_of
from tests.testing.tiny import CONTEXT, block_model, random_tokens

SMALL, LARGE, EXPERTS = "gemma4", "gemma4, large", "gemma4, experts"
E2B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
"""As its publisher has it."""
LARGE_31B: dict[str, Any] = {
    **E2B,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": None,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "use_bidirectional_attention": "vision",
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
}
MIXED: dict[str, Any] = {
    **LARGE_31B,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}


@pytest.fixture(scope="module", params=[SMALL, LARGE, EXPERTS])
def runner(request: pytest.FixtureRequest) -> CpuRunner:
    model = block_model(model_of(CONFIGS[request.param]))
    return CpuRunner(model, context_length=CONTEXT, threads=2, sequences=3)


def test_models_as_they_were_published() -> None:
    architecture = ARCHITECTURES["gemma4_text"]
    for config in (E2B, LARGE_31B, MIXED):
        assert unsupported(config) is None
        assert step(config, own=True) == "kernels"
        assert rotary_layouts(config, architecture) == [
            RotaryLayout(64, 256, 512),
            RotaryLayout(128, 128, 256),
        ]
    assert layer_heads(E2B)[3:5] == [(8, 1, 256), (8, 1, 512)]
    assert layer_heads(LARGE_31B)[4:6] == [(32, 16, 256), (32, 4, 512)]
    assert sources(E2B)[12:22] == [12, 13, 14, 13, 13, 13, 13, 14, 13, 13]
    assert slot_size(E2B) == 2 * (12 * 256 + 3 * 512)
    assert slot_size(LARGE_31B) == 2 * (50 * 16 * 256 + 10 * 4 * 512)


def test_what_of_them_is_not_computed_is_said() -> None:
    assert "several experts of which" not in str(unsupported(E2B))
    assert "are chosen" in str(unsupported({**MIXED, "top_k_experts": 0}))
    assert "no whole blocks" in str(unsupported({**MIXED, "moe_intermediate_size": 700}))
    assert "no whole blocks" in str(unsupported({**E2B, "hidden_size_per_layer_input": 250}))
    assert "inputs of layers beside experts" in str(
        unsupported({**MIXED, "hidden_size_per_layer_input": 256})
    )
    assert "behind" in str(unsupported({**E2B, "use_bidirectional_attention": "all"}))


@pytest.mark.parametrize("name", [SMALL, LARGE, EXPERTS])
def test_every_tensor_of_transformers_is_read(name: str) -> None:
    model = model_of(CONFIGS[name])
    state, read = tensors_of(model), set()

    def tensor(said: str) -> np.ndarray:
        read.add(said)
        return state[said]

    for one in tensors(ARCHITECTURES["gemma4_text"], model.config.to_dict()):
        whole(one, 6, tensor)
    assert read == set(state)


@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_two_ways_to_say_the_heads(name: str) -> None:
    """What transformers saves and what was published."""
    saved = CONFIGS[name].to_dict()
    published = {key: value for key, value in saved.items() if key != "per_layer_config"}
    published |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    assert layer_heads(published) == layer_heads(saved)
    assert slot_size(published) == slot_size(saved)


@pytest.mark.parametrize("layers", [6, 12, 102])
def test_as_many_layers_as_there_are_say_their_heads(layers: int) -> None:
    """Transformers saves their numbers with leading zeros."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * (layers // 3)
    saved = {**CONFIGS[LARGE].to_dict(), "num_hidden_layers": layers, "layer_types": kinds}
    del saved["per_layer_config"]
    saved |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    assert layer_heads(Gemma4TextConfig(**saved).to_dict()) == layer_heads(saved)


def test_slots_are_kept_for_layers_with_keys_of_their_own(runner: CpuRunner) -> None:
    pages = len(runner.slots[0].keys)
    held = sum(2 * kind.keys.size for kind in runner.slots)
    assert held == pages * CHUNK * slot_size(runner.model.config)


def test_how_a_text_was_read_changes_no_bit(runner: CpuRunner) -> None:
    """In pieces, of which layers without keys of their own compute nothing, or at once; over others' pages."""
    text, block = random_tokens(CHUNK + 40), random_tokens(9, 1)
    parents = [-1, 0, 0, 1, -1, 4, 2, 6, 3]
    one, other, third = runner.open(), runner.open(), runner.open()
    one.read(text)
    for begin in range(0, len(text), 50):
        part = text[begin : begin + 50]
        other.forward(part, range(-1, len(part) - 1))
        other.commit(range(len(part)))
    third.adopt(one, text)
    found = [np.asarray(sequence.forward(block, parents)) for sequence in (one, other, third)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    one.commit([0, 2, 6, 7])
    other.read([block[node] for node in (0, 2, 6, 7)])
    np.testing.assert_array_equal(
        np.asarray(one.forward([3, 5], [-1, 0])), np.asarray(other.forward([3, 5], [-1, 0]))
    )
    for sequence in (one, other, third):
        sequence.close()
