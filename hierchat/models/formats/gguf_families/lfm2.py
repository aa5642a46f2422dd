"""LFM2: short convolutions and attention; with experts, where only the first layers are dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.models.formats.gguf_families.common import CONVOLUTION, FULL, by_layer, common, has, needed
from hierchat.models.formats.gguf_families.family import EXPERTS, Config, Family, Part
from hierchat.models.formats.gguf_head import Head


def _config(head: Head, kind: str, **also: Any) -> dict[str, Any]:
    attentive = by_layer(head, "attention.head_count_kv")
    return common(
        head,
        model_type=kind,
        layer_types=[FULL if one else CONVOLUTION for one in attentive],
        num_key_value_heads=max(attentive),
        conv_L_cache=needed(head, "shortconv.l_cache"),
        conv_bias=has(head, "shortconv.conv.bias"),
        norm_eps=head.of_architecture("attention.layer_norm_rms_epsilon"),
        **also,
    )


def _dense(head: Head) -> dict[str, Any]:
    return _config(head, "lfm2", block_auto_adjust_ff_dim=False)  # files have the size that it leads to


def _with_experts(head: Head) -> dict[str, Any]:
    return _config(
        head,
        "lfm2_moe",
        num_dense_layers=needed(head, "leading_dense_block_count"),
        num_experts=needed(head, "expert_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        moe_intermediate_size=needed(head, "expert_feed_forward_length"),
        use_expert_bias=has(head, "exp_probs_b.bias"),
    )


def _parts(config: Config) -> Mapping[str, Part]:
    return {**EXPERTS, "feed_forward.expert_bias": Part(of=("exp_probs_b.bias",))}


FAMILIES = (
    Family("lfm2", ("lfm2",), _dense, _parts),
    Family("lfm2moe", ("lfm2_moe",), _with_experts, _parts),
)
