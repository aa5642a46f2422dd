"""Granite 4 (Mamba 2 and attention, with experts or without), and Granite MoE.

Queries and keys are turned for rotary positions as Llama's are, even where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hierchat.models.formats.gguf_families.common import (
    FULL,
    STATE,
    by_layer,
    common,
    has,
    needed,
    rotations,
    states,
)
from hierchat.models.formats.gguf_families.family import (
    EXPERTS,
    STATES,
    Config,
    Family,
    Part,
    halves,
    joined,
)
from hierchat.models.formats.gguf_head import Head


def _config(head: Head, kind: str, **also: Any) -> dict[str, Any]:
    return common(
        head,
        model_type=kind,
        embedding_multiplier=needed(head, "embedding_scale"),
        residual_multiplier=needed(head, "residual_scale"),
        attention_multiplier=needed(head, "attention.scale"),
        logits_scaling=needed(head, "logit_scale"),
        num_local_experts=head.of_architecture("expert_count") or 0,
        num_experts_per_tok=head.of_architecture("expert_used_count") or 0,
        **also,
    )


def _with_states(head: Head) -> dict[str, Any]:
    sizes, attentive = states(head), by_layer(head, "attention.head_count_kv")
    shared = head.of_architecture("expert_shared_feed_forward_length")
    return _config(
        head,
        "granitemoehybrid",
        layer_types=[FULL if one else STATE for one in attentive],
        num_key_value_heads=max(attentive),
        shared_intermediate_size=shared or head.of_architecture("feed_forward_length"),
        position_embedding_type="rope" if head.of_architecture("rope.scaling.finetuned") else None,
        rope_parameters=rotations(head),
        mamba_n_heads=sizes["time_step_rank"],
        mamba_d_head=sizes["head"],
        mamba_n_groups=sizes["group_count"],
        mamba_d_state=sizes["state_size"],
        mamba_d_conv=sizes["conv_kernel"],
        mamba_expand=sizes["inner_size"] // int(head.of_architecture("embedding_length")),
        mamba_conv_bias=has(head, "ssm_conv1d.bias"),
        mamba_proj_bias=has(head, "ssm_in.bias"),
    )


def _with_experts(head: Head) -> dict[str, Any]:
    shared = head.of_architecture("expert_shared_feed_forward_length")
    kind = "granitemoeshared" if shared else "granitemoe"
    return _config(head, kind, shared_intermediate_size=shared or None)


def _parts(config: Config) -> Mapping[str, Part]:
    beside = "_shexp" if config["num_local_experts"] else ""
    return {
        **EXPERTS,
        **STATES,
        "self_attn.q_proj.weight": halves(config["num_attention_heads"]),
        "self_attn.k_proj.weight": halves(config["num_key_value_heads"]),
        "block_sparse_moe.router.weight": Part(of=("ffn_gate_inp.weight",)),
        "shared_mlp.input_linear.weight": Part(
            joined(0), (f"ffn_gate{beside}.weight", f"ffn_up{beside}.weight")
        ),
        "shared_mlp.output_linear.weight": Part(of=(f"ffn_down{beside}.weight",)),
        "mamba.norm.weight": Part(np.ravel),
    }


FAMILIES = (
    Family("granitehybrid", ("granitemoehybrid",), _with_states, _parts),
    Family("granitemoe", ("granitemoe", "granitemoeshared"), _with_experts, _parts),
)
