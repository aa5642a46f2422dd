"""What heads of files say, family by family: their keys by the names in transformers' configuration, and the rest."""

from typing import Any

import torch

ALIKE = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.value_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}  # fmt: skip
DELTA = {
    "ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads", "ssm.time_step_rank": "linear_num_value_heads",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}  # fmt: skip
GRANITE = {
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier", "logit_scale": "logits_scaling",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}  # fmt: skip
LFM2 = {
    "attention.layer_norm_rms_epsilon": "norm_eps", "leading_dense_block_count": "num_dense_layers",
    "shortconv.l_cache": "conv_L_cache",
}  # fmt: skip
NEMOTRON = {
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon", "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size", "ssm.group_count": "n_groups", "ssm.time_step_rank": "mamba_num_heads",
}  # fmt: skip
ROUTED = {
    "expert_count": "n_routed_experts", "expert_shared_count": "n_shared_experts",
    "expert_weights_norm": "norm_topk_prob", "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
}  # fmt: skip
NAMES = {
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), DELTA),
    **dict.fromkeys(("granitehybrid", "granitemoe"), GRANITE),
    **dict.fromkeys(("lfm2", "lfm2moe"), LFM2),
    "nemotron_h": NEMOTRON,
    "nemotron_h_moe": {
        **NEMOTRON, **ROUTED, "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_group_used_count": "topk_group", "moe_latent_size": "moe_latent_size",
    },
    "cohere2": {
        "attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale",
        "attention.sliding_window": "sliding_window", "rope.dimension_count": "head_dim",
    },
    "gemma3n": {
        "attention.sliding_window": "sliding_window", "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "final_logit_softcapping": "final_logit_softcapping", "altup.active_idx": "altup_active_idx",
        "altup.num_inputs": "altup_num_inputs",
    },
    "qwen2moe": {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    "glm4moe": {
        **ROUTED, "leading_dense_block_count": "first_k_dense_replace", "expert_group_used_count": "topk_group",
    },
}  # fmt: skip


def head_of(architecture: str, config: Any, guessing: int) -> dict[str, Any]:
    """Values of None are left out."""
    names = ALIKE | NAMES.get(architecture, {})
    said = {key: getattr(config, name, None) for key, name in names.items()}
    if (scale := said.get("expert_weights_scale")) is not None:
        said["expert_weights_scale"] = float(scale)
    said["block_count"] = config.num_hidden_layers + guessing
    said["nextn_predict_layers"] = guessing or None
    rotations = getattr(config, "rope_parameters", None) or {}
    said["rope.freq_base"] = rotations.get("rope_theta")
    match architecture:
        case "qwen35" | "qwen35moe" | "qwen3next":
            said["ssm.inner_size"] = config.linear_value_head_dim * config.linear_num_value_heads
            said["full_attention_interval"] = 4
            said["rope.dimension_count"] = int(config.head_dim * rotations["partial_rotary_factor"])
            if architecture != "qwen3next":
                said["rope.dimension_sections"] = [11, 11, 10, 0]
        case "granitehybrid" | "granitemoe":
            said["expert_count"] = config.num_local_experts or None
            said["expert_used_count"] = config.num_experts_per_tok if config.num_local_experts else None
            said["rope.dimension_count"] = config.hidden_size // config.num_attention_heads
            if architecture == "granitehybrid":
                said |= {
                    "ssm.conv_kernel": config.mamba_d_conv,
                    "ssm.state_size": config.mamba_d_state,
                    "ssm.group_count": config.mamba_n_groups,
                    "ssm.inner_size": config.mamba_expand * config.hidden_size,
                    "ssm.time_step_rank": config.mamba_n_heads,
                    "attention.head_count_kv": _attentive(config, config.layer_types),
                    "rope.scaling.finetuned": False,
                }
        case "lfm2" | "lfm2moe":
            said["attention.head_count_kv"] = _attentive(config, config.layer_types)
            said["expert_gating_func"] = 2 if architecture == "lfm2moe" else None
        case "nemotron_h" | "nemotron_h_moe":
            kinds = config.layers_block_type
            with_experts = architecture == "nemotron_h_moe"
            wide = config.moe_intermediate_size if with_experts else config.intermediate_size
            said["attention.head_count_kv"] = _attentive(config, kinds)
            said["feed_forward_length"] = [wide if kind in ("moe", "mlp") else 0 for kind in kinds]
            said["ssm.inner_size"] = config.mamba_num_heads * config.mamba_head_dim
            said["attention.layer_norm_epsilon"] = config.layer_norm_epsilon
            said["rope.scaling.finetuned"] = False
            if not with_experts:
                said |= dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"))
        case "cohere2":
            said["rope.scaling.type"] = "none"
        case "gemma3n":
            kinds, icdf = config.layer_types, torch.distributions.normal.Normal(0, 1).icdf
            shares = [
                torch.tensor(share, dtype=torch.float32) for share in config.activation_sparsity_pattern
            ]
            said["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
            said["activation_sparsity_scale"] = [icdf(share).item() for share in shares]
            said["rope.freq_base"] = rotations["full_attention"]["rope_theta"]
        case "glm4moe":
            said["rope.dimension_count"] = int(config.head_dim * rotations["partial_rotary_factor"])
            said["expert_gating_func"] = 2
    return said


def _attentive(config: Any, kinds: list[str]) -> list[int]:
    return [config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds]
