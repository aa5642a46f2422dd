"""Sizes of a decoder, as its config.json gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST = {
    "altup_num_inputs": 2**6,
    "global_head_dim": 2**14,
    "head_dim": 2**14,
    "hidden_size": 2**17,
    "hidden_size_per_layer_input": 2**17,
    "intermediate_size": 2**20,
    "max_position_embeddings": 2**31,
    "moe_intermediate_size": 2**20,
    "n_routed_experts": 2**14,
    "num_attention_heads": 2**12,
    "num_experts": 2**14,
    "num_experts_per_tok": 2**14,
    "num_global_key_value_heads": 2**12,
    "num_hidden_layers": 2**10,
    "num_key_value_heads": 2**12,
    "num_kv_shared_layers": 2**10,
    "num_local_experts": 2**14,
    "original_max_position_embeddings": 2**31,
    "top_k_experts": 2**14,
    "vocab_size": 2**24,
    "vocab_size_per_layer_input": 2**24,
}
"""Far above those of the largest models. A file may say more, to have somebody count to it or take as much memory."""
_LEAST = {"hidden_size": 1, "num_hidden_layers": 1, "vocab_size": 1}
_MOST_OF_OTHERS = 2**48
_MAY_BE_INFINITE = "limit"


def require_plausible(config: Mapping[str, Any]) -> None:
    """Raises ValueError, naming a number that no model can have: it comes before anything is computed with it."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            require_plausible(value)
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Mapping):
                require_plausible(one)
            elif one is not None and not _is_plausible(key, one):
                raise ValueError(f"its {key} is {str(one)[:40]}")


def _is_plausible(key: str, value: Any) -> bool:
    if key in _MOST:
        return type(value) is int and _LEAST.get(key, 0) <= value <= _MOST[key]
    if isinstance(value, float):
        return math.isfinite(value) or (value > 0 and _MAY_BE_INFINITE in key)
    return not isinstance(value, int) or abs(value) <= _MOST_OF_OTHERS


def heads_of(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Query heads, key-value heads, numbers per head."""
    heads = config["num_attention_heads"]
    return (
        heads,
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or config["hidden_size"] // heads,
    )


def query_scales(
    config: Mapping[str, Any], positions: int, usual: float | None = None
) -> NDArray[np.float32]:
    """What the queries of each position are multiplied by, so that scores stay small; [positions]. `usual`: where
    config.json says nothing, if it is not the root of a head's size that divides them."""
    divided = 1.0 / sqrt(config.get("query_pre_attn_scalar") or heads_of(config)[2])
    scale = config.get("attention_multiplier") or usual or divided
    rope = config.get("rope_parameters") or {}
    if not (growth := rope.get("llama_4_scaling_beta")):
        return np.full(positions, scale, np.float32)
    passed = np.arange(positions) // rope["original_max_position_embeddings"]
    return (scale * (1.0 + growth * np.log1p(passed))).astype(np.float32)


def experts_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Experts of a layer, and how many of them a token wakes; 0, 0: it has none."""
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    if not experts or config.get("enable_moe_block") is False:
        return 0, 0
    return experts, config.get("num_experts_per_tok") or config.get("top_k_experts") or 0


def shared_by_active(config: Mapping[str, Any]) -> bool:
    """Whether what a token's experts bring is weighed by a softmax over these alone, not over all experts."""
    return bool(config.get("norm_topk_prob", True))


# What a configuration says of texts, where a model knows pictures or sounds, too, in words for texts alone.


KINDS = {
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
}
"""Kinds of models whose texts our own engine computes from safetensors, and as which architecture."""
PREFIX = "model.language_model."
"""Where the tensors of texts stand among others; in place of "model."."""


def of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration itself, unless it is of one of KINDS."""
    kind = KINDS.get(str(config.get("model_type")))
    if not kind:
        return config
    text = config.get("text_config") or config
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", True))
    return {**text, "model_type": kind, "tie_word_embeddings": tied}
