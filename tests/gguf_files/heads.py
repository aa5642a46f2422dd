"""What heads of files say, family by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def head_of(architecture: str, config: Any, guessing: int) -> dict[str, Any]:
    said = {
        "block_count": config.num_hidden_layers + guessing,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.value_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "rope.freq_base": (getattr(config, "rope_parameters", None) or {}).get("rope_theta"),
        "expert_count": getattr(config, "num_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
    }
    if guessing:
        said["nextn_predict_layers"] = guessing
    return said | _HEADS[architecture](config)


def _attentive(config: Any, kinds: list[str]) -> list[int]:
    return [config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds]


def _head_of_qwen(config: Any) -> dict[str, Any]:
    inner = config.linear_value_head_dim * config.linear_num_value_heads
    said = {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": inner,
        "full_attention_interval": 4,
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "expert_shared_feed_forward_length": getattr(config, "shared_expert_intermediate_size", None),
    }
    if config.model_type != "qwen3_next":
        said["rope.dimension_sections"] = [11, 11, 10, 0]
    return said


def _head_of_granite(config: Any) -> dict[str, Any]:
    said = {
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "attention.scale": config.attention_multiplier,
        "logit_scale": config.logits_scaling,
        "expert_count": config.num_local_experts or None,
        "expert_shared_feed_forward_length": getattr(config, "shared_intermediate_size", None),
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
    }
    if config.model_type != "granitemoehybrid":
        return said
    return said | {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.time_step_rank": config.mamba_n_heads,
        "attention.head_count_kv": _attentive(config, config.layer_types),
        "rope.scaling.finetuned": False,
    }


def _head_of_lfm2(config: Any) -> dict[str, Any]:
    return {
        "attention.head_count_kv": _attentive(config, config.layer_types),
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "leading_dense_block_count": getattr(config, "num_dense_layers", None),
        "shortconv.l_cache": config.conv_L_cache,
    }


def _head_of_nemotron(config: Any) -> dict[str, Any]:
    kinds = config.layers_block_type
    with_experts = "moe" in kinds
    wide = config.moe_intermediate_size if with_experts else config.intermediate_size
    said = {
        "attention.head_count_kv": _attentive(config, kinds),
        "feed_forward_length": [wide if kind in ("moe", "mlp") else 0 for kind in kinds],
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.group_count": config.n_groups,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.time_step_rank": config.mamba_num_heads,
        "rope.scaling.finetuned": False,
    }
    if not with_experts:
        return said | dict.fromkeys(("expert_used_count", "expert_feed_forward_length"))
    return said | {
        "expert_count": config.n_routed_experts,
        "expert_shared_count": config.n_shared_experts,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_group_count": config.n_group,
    }


def _head_of_cohere2(config: Any) -> dict[str, Any]:
    return {
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "logit_scale": config.logit_scale,
        "attention.sliding_window": config.sliding_window,
        "rope.dimension_count": config.head_dim,
        "rope.scaling.type": "none",
    }


def _head_of_gemma3n(config: Any) -> dict[str, Any]:
    icdf = torch.distributions.normal.Normal(0, 1).icdf
    return {
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "final_logit_softcapping": config.final_logit_softcapping,
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "activation_sparsity_scale": [
            icdf(torch.tensor(share, dtype=torch.float32)).item()
            for share in config.activation_sparsity_pattern
        ],
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
    }


def _head_of_glm4(config: Any) -> dict[str, Any]:
    return {
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "expert_count": config.n_routed_experts,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_gating_func": 2,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


_HEADS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), _head_of_qwen),
    **dict.fromkeys(("granitehybrid", "granitemoe"), _head_of_granite),
    **dict.fromkeys(("lfm2", "lfm2moe"), _head_of_lfm2),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _head_of_nemotron),
    "cohere2": _head_of_cohere2,
    "gemma3n": _head_of_gemma3n,
    "olmoe": lambda config: {},
    "glm4moe": _head_of_glm4,
}
