"""Every kind of text model that transformers can generate with, tiny and random."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
LARGEST = 20_000_000
"""Parameters of a model that still counts as tiny; most have fewer than one million."""
WINDOW = 24

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "text_vocab_size"), 97),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "emb_dim"), 64),
    "word_embed_proj_dim": 64,
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("dff", "ffn_hidden_size", "intermediate_size_mlp", "shared_intermediate_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("dim_ff", "feed_forward_size", "moe_shared_expert_intermediate_size"), 96),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_global_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_dim", "global_head_dim"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    "num_routed_experts": 4,
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts", "num_experts_per_token", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 32),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(("state_size", "time_step_rank", "mamba_dt_rank"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), WINDOW),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    "lru_width": 64, "hidden_size_per_layer_input": 16, "initializer_range": 0.2,
    "num_kv_shared_layers": 2, "attention_chunk_size": WINDOW, "chunk_size": 16, "rotary_dim": 8,
    "sliding_window_pattern": 2, "cross_attention_hidden_size": 64,
}  # fmt: skip
"""By the names of configurations' fields."""

_MAMBA = {"mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 16}
_GEMMA4 = {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2}
_MIXED = ["linear_attention", "full_attention"] * 2
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
ALSO: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
    "granitemoehybrid": {**_MAMBA, "layer_types": _MIXED, "num_local_experts": 0},
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2},
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    **{kind: {"head_dim": 16} for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "nemotron")},
    "dots1": {**_EXPERTS, "n_shared_experts": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "zamba": {"num_hidden_layers": 8, "attn_layer_period": 4, "attn_layer_offset": 2},
    "zaya": {"num_experts_per_tok": 1},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
    },
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "qwen4_exp_text": {"num_key_value_heads": 2, "num_attention_heads": 4},
    "reformer": {"is_decoder": True},
    "nemotron_h": {"num_hidden_layers": 4, "hybrid_override_pattern": "M*M-"},
}
"""What else a kind needs to be small and whole."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "granitemoehybrid, experts": ("granitemoehybrid", {"num_local_experts": 4}),
    "nemotron_h, experts": ("nemotron_h", {"hybrid_override_pattern": "M*ME"}),
}
"""Kinds that come with and without several experts, by other names: with them."""


def tiny_config(kind: str, **changed: Any) -> Any:
    """transformers' configuration of this kind, or of one of VARIANTS, with every size made small."""
    kind, also = VARIANTS.get(kind, (kind, {}))
    usual = AutoConfig.for_model(kind)
    return AutoConfig.for_model(kind, **{**_shrunk(usual), **ALSO.get(kind, {}), **also, **changed})


def _shrunk(usual: Any) -> dict[str, Any]:
    said = usual.to_dict()
    found = {key: SMALL[key] for key in SMALL if said.get(key) is not None or key.endswith("_token_id")}
    if "kv_lora_rank" in found:  # latent attention has a key for each query
        found["num_key_value_heads"] = SMALL["num_attention_heads"]
    for key in usual.sub_configs:
        if (part := getattr(usual, key, None)) is not None:
            found[key] = {**_shrunk(part), **ALSO.get(part.model_type, {})}
    return found


def tiny_family(kind: str, **changed: Any) -> Any:
    """A random model of this kind."""
    config = tiny_config(kind, **changed)
    with torch.device("meta"):
        size = sum(one.numel() for one in AutoModelForCausalLM.from_config(config).parameters())
    assert size <= LARGEST, f"{kind} has {size:,} parameters"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
