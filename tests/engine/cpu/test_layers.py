"""Models whose layers differ: larger heads in some, keys and values that layers share, inputs of their own."""

from __future__ import annotations

from typing import Any

import pytest

from hierchat.models.architectures.families import ARCHITECTURES
from hierchat.models.architectures.model_config import layer_heads, slot_size, sources
from hierchat.models.architectures.rope import RotaryLayout, rotary_layouts
from hierchat.models.runnable import step, unsupported
from tests.testing.architectures import CONFIGS

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


@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_two_ways_to_say_the_heads(name: str) -> None:
    """What transformers saves and what was published."""
    saved = CONFIGS[name].to_dict()
    published = {key: value for key, value in saved.items() if key != "per_layer_config"}
    published |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    assert layer_heads(published) == layer_heads(saved)
    assert slot_size(published) == slot_size(saved)
