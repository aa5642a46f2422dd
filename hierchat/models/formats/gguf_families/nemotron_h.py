"""Nemotron H: a layer is Mamba 2, attention, or what feeds forward, dense or of experts. Made as Granite's hybrids are,
so queries and keys are turned though nothing rotates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hierchat.models.formats.gguf_families.common import FULL, STATE, by_layer, common, has, needed, states
from hierchat.models.formats.gguf_families.family import SCORE_BIAS, STATES, Config, Family, Part, halves
from hierchat.models.formats.gguf_head import Head


def _config(head: Head) -> dict[str, Any]:
    sizes, attentive = states(head), by_layer(head, "attention.head_count_kv")
    wide = by_layer(head, "feed_forward_length")
    of_experts = {tensor.name for tensor in head.tensors if tensor.name.endswith("ffn_gate_inp.weight")}

    def kind(layer: int) -> str:
        if attentive[layer]:
            return FULL
        if not wide[layer]:
            return STATE
        return "moe" if f"blk.{layer}.ffn_gate_inp.weight" in of_experts else "mlp"

    return common(
        head,
        model_type="nemotron_h",
        layers_block_type=[kind(layer) for layer in range(len(attentive))],
        num_key_value_heads=max(attentive),
        intermediate_size=max(wide),
        layer_norm_epsilon=head.of_architecture("attention.layer_norm_rms_epsilon"),
        mamba_num_heads=sizes["time_step_rank"],
        mamba_head_dim=sizes["head"],
        n_groups=sizes["group_count"],
        ssm_state_size=sizes["state_size"],
        conv_kernel=sizes["conv_kernel"],
        use_conv_bias=has(head, "ssm_conv1d.bias"),
        use_bias=has(head, "ssm_in.bias"),
        **(_experts(head) if of_experts else {}),
    )


def _experts(head: Head) -> dict[str, Any]:
    return {
        "n_routed_experts": needed(head, "expert_count"),
        "num_experts_per_tok": needed(head, "expert_used_count"),
        "n_shared_experts": needed(head, "expert_shared_count"),
        "moe_intermediate_size": needed(head, "expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": needed(head, "expert_shared_feed_forward_length"),
        "moe_latent_size": head.of_architecture("moe_latent_size"),
        "norm_topk_prob": needed(head, "expert_weights_norm"),
        "routed_scaling_factor": needed(head, "expert_weights_scale"),
        "n_group": head.of_architecture("expert_group_count"),
        "topk_group": head.of_architecture("expert_group_used_count"),
    }


def _parts(config: Config) -> Mapping[str, Part]:
    return {
        **STATES,
        **SCORE_BIAS,
        "mixer.q_proj.weight": halves(config["num_attention_heads"]),
        "mixer.k_proj.weight": halves(config["num_key_value_heads"]),
        "mixer.norm.weight": Part(np.ravel),
        "mixer.experts.up_proj": Part(of=("ffn_up_exps.weight",)),
        "mixer.experts.down_proj": Part(of=("ffn_down_exps.weight",)),
    }


FAMILIES = tuple(
    Family(name, ("nemotron_h",), _config, _parts, prefixes=("model.", "backbone."))
    for name in ("nemotron_h", "nemotron_h_moe")
)
