"""The architectures that the CPU engine computes, each by where it differs from a Llama decoder."""

from __future__ import annotations

from dataclasses import replace

from hierchat.models.architectures.architecture import (
    CLAMPED,
    EXPERTS,
    EXPERTS_BESIDE_MLP,
    FUSED_EXPERTS,
    LAYER_INPUT_NORMS,
    LAYER_INPUTS,
    LAYER_SCALES,
    MATRICES,
    NORMS,
    NORMS_AFTER,
    NORMS_BESIDE_MLP,
    QUERY_KEY_NORMS,
    SANDWICH_NORMS,
    Architecture,
    Name,
)

_POST_ATTENTION_NORMS = NORMS | {"inner_norms": Name("post_attention_layernorm", "post_attention_norm")}
"""Norms at Llama's places, of which GGUF files call the second one otherwise."""

# EXAONE 4: norms as in OLMo 2, but of each head; where layers have windows, those without have no rotary positions
EXAONE4 = Architecture(
    model_type="exaone4",
    gguf="exaone4",
    norms=NORMS_AFTER | QUERY_KEY_NORMS,
    window=True,
    full_every=4,
    full_unrotated=True,
)
# Gemma 2: norms around attention and gate, windows over every second layer, soft caps of scores and logits
GEMMA2 = Architecture(
    model_type="gemma2",
    gguf="gemma2",
    norms=SANDWICH_NORMS,
    norm_offset=1.0,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    window=True,
    full_every=2,
)
# Gemma 3, its text model: windows over five layers of six, whose rotary base is another
GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    gguf="gemma3",
    norms=SANDWICH_NORMS | QUERY_KEY_NORMS,
    full_every=6,
    rope_base=1_000_000.0,
    local_rope_base=10_000.0,
)
# Gemma 4, its text model: Gemma 3 with larger heads where there is no window, and what some of its sizes have: layers
# that share keys and values, per-layer inputs, routed experts beside a dense MLP
GEMMA4 = replace(
    GEMMA3,
    model_type="gemma4_text",
    gguf="gemma4",
    norms=SANDWICH_NORMS | QUERY_KEY_NORMS | LAYER_INPUT_NORMS | NORMS_BESIDE_MLP,
    norm_offset=0.0,
    matrices=MATRICES | LAYER_INPUTS,
    experts_beside_mlp=EXPERTS_BESIDE_MLP,
    scales=LAYER_SCALES,
    value_norm=True,
    query_scale=1.0,
    full_head_dim=512,
)
# GLM 4 (0414): norms around attention and gate, one matrix for gate and up, half of each head rotated
GLM4 = Architecture(
    model_type="glm4",
    gguf="glm4",
    norms={
        "attention_norms": Name("input_layernorm", "attn_norm"),
        "after_attention_norms": Name("post_self_attn_layernorm", "post_attention_norm"),
        "inner_norms": Name("post_attention_layernorm", "ffn_norm"),
        "after_inner_norms": Name("post_mlp_layernorm", "post_ffw_norm"),
    },
    matrices=MATRICES | dict.fromkeys(("gate", "up"), Name("mlp.gate_up_proj", "ffn_up")),
    biases=("q", "k", "v"),
    optional_biases=True,
    gguf_interleaved_rope=True,
    interleaved_rope=True,
    partial_rotary=0.5,
)
# gpt-oss: experts with biases and a clamped gate, windows in every other layer, attention sinks
GPT_OSS = Architecture(
    model_type="gpt_oss",
    gguf="gpt-oss",
    norms=_POST_ATTENTION_NORMS,
    matrices=MATRICES | FUSED_EXPERTS,
    biases=("q", "k", "v", "o", "router", "gate", "up", "down"),
    sinks=Name("self_attn.sinks", "attn_sinks"),
    activation=CLAMPED,
    window=True,
    full_every=2,
    rope_base=150_000.0,
)
# Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama, Mistral in GGUF files
LLAMA = Architecture(model_type="llama", gguf="llama", norms=NORMS, gguf_interleaved_rope=True)
# Granite 3: Llama with multipliers, which config.json gives
GRANITE = replace(LLAMA, model_type="granite", gguf="granite")
# Mistral: Llama, in some versions with a sliding window over all layers
MISTRAL = Architecture(model_type="mistral", gguf="mistral", norms=NORMS, window=True)
# Ministral 3: Mistral with YaRN, and queries that grow with their position; GGUF files call it Mistral 3
MISTRAL3 = replace(LLAMA, model_type="ministral3", gguf="mistral3", window=True, rope_base=1_000_000.0)
# Mixtral, as safetensors: Llama with routed experts; its GGUF files call themselves Llama's
MIXTRAL = Architecture(
    model_type="mixtral",
    gguf="mixtral",
    norms=NORMS,
    matrices=MATRICES
    | {
        "router": Name("block_sparse_moe.gate", "ffn_gate_inp"),
        "gate": Name("block_sparse_moe.experts.{}.w1", "ffn_gate_exps"),
        "up": Name("block_sparse_moe.experts.{}.w3", "ffn_up_exps"),
        "down": Name("block_sparse_moe.experts.{}.w2", "ffn_down_exps"),
    },
    window=True,
    rope_base=1_000_000.0,
)
# OLMo 2: norms behind attention and gate only, and norms of all queries and all keys together
OLMO2 = Architecture(model_type="olmo2", gguf="olmo2", norms=NORMS_AFTER | QUERY_KEY_NORMS)
# OLMo 3, which GGUF files call OLMo 2: windows over three layers of four, whose rotary positions are not scaled
OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    gguf="olmo3",
    window=True,
    full_every=4,
    rope_base=500_000.0,
    local_rope_base=500_000.0,
)
# Phi-3, Phi-4 and Phi-4-mini: Llama with one matrix for queries, keys and values, and one for gate and up
PHI3 = Architecture(
    model_type="phi3",
    gguf="phi3",
    norms=NORMS,
    matrices=MATRICES
    | dict.fromkeys("qkv", Name("self_attn.qkv_proj", "attn_qkv"))
    | dict.fromkeys(("gate", "up"), Name("mlp.gate_up_proj", "ffn_up")),
    window=True,
)
# Qwen2 and Qwen2.5: Llama with biases of queries, keys and values
QWEN2 = Architecture(model_type="qwen2", gguf="qwen2", norms=NORMS, biases=("q", "k", "v"))
# Qwen3: Llama with norms of each head's queries and keys
QWEN3 = Architecture(model_type="qwen3", gguf="qwen3", norms=NORMS | QUERY_KEY_NORMS)
# Qwen3 with routed experts in every layer, such as Qwen3-Coder 30B-A3B
QWEN3MOE = replace(
    QWEN3,
    model_type="qwen3_moe",
    gguf="qwen3moe",
    matrices=MATRICES | EXPERTS,
    inner="moe_intermediate_size",
)
# Seed-OSS: Llama with biases of queries, keys and values
SEED_OSS = Architecture(
    model_type="seed_oss",
    gguf="seed_oss",
    norms=_POST_ATTENTION_NORMS,
    biases=("q", "k", "v"),
    optional_biases=True,
)
# SmolLM3: Llama, one layer of four without rotary positions
SMOLLM3 = replace(LLAMA, model_type="smollm3", gguf="smollm3", rope_base=2_000_000.0, unrotated_every=4)

_ALL = (
    EXAONE4, GEMMA2, GEMMA3, GEMMA4, GLM4, GPT_OSS, GRANITE, LLAMA, MISTRAL, MISTRAL3, MIXTRAL, OLMO2, OLMO3, PHI3,
    QWEN2, QWEN3, QWEN3MOE, SEED_OSS, SMOLLM3,
)  # fmt: skip
ARCHITECTURES = {architecture.model_type: architecture for architecture in _ALL}
"""Architectures by transformers' name."""
GGUF_ARCHITECTURES = {architecture.gguf: architecture for architecture in _ALL}
"""Architectures by the name in GGUF files."""


def unknown(name: object) -> str:
    """Describe an architecture of another name as unknown, and name those that are known."""
    return f"architecture {name} (known are {', '.join(ARCHITECTURES)})"
