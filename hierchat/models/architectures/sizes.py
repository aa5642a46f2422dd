"""Sizes of a decoder, as its config.json gives them."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
