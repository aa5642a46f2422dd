"""The architectures that the CPU engine computes, each by where it differs from a Llama decoder: facts for the loader
and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class Name(NamedTuple):
    """A tensor's name in transformers and in GGUF files. In the tables below, without its layer and its kind."""

    transformers: str
    gguf: str

    def of(self, layer: int, kind: str = "weight") -> Name:
        """Return the whole name in a layer; `kind`: "weight" or "bias"."""
        return Name(f"model.layers.{layer}.{self.transformers}.{kind}", f"blk.{layer}.{self.gguf}.{kind}")


EMBEDDING = Name("model.embed_tokens.weight", "token_embd.weight")
LAST_NORM = Name("model.norm.weight", "output_norm.weight")
HEAD = Name("lm_head.weight", "output.weight")
"""Missing where the embedding serves as the head."""
LAYER_EMBEDDING = Name("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight")
LAYER_PROJECTION = Name("model.per_layer_model_projection.weight", "per_layer_model_proj.weight")
LAYER_PROJECTION_NORM = Name("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight")
"""What layers with inputs of their own begin with: a part of each token's own, and one made of its embedding."""
ROPE_FACTORS = "rope_freqs.weight"
"""In GGUF files alone: what divides the rotary frequencies, ready-made."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""LongRoPE's divisors for texts that are longer than the model was first trained with, and for others."""

MATRICES = {
    "q": Name("self_attn.q_proj", "attn_q"),
    "k": Name("self_attn.k_proj", "attn_k"),
    "v": Name("self_attn.v_proj", "attn_v"),
    "o": Name("self_attn.o_proj", "attn_output"),
    "gate": Name("mlp.gate_proj", "ffn_gate"),
    "up": Name("mlp.up_proj", "ffn_up"),
    "down": Name("mlp.down_proj", "ffn_down"),
}
"""Matrices of a layer, in the order in which the CPU engine keeps them. All architectures have these."""
EXPERTS = {
    "router": Name("mlp.gate", "ffn_gate_inp"),
    "gate": Name("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
    "up": Name("mlp.experts.{}.up_proj", "ffn_up_exps"),
    "down": Name("mlp.experts.{}.down_proj", "ffn_down_exps"),
}
"""Where a layer has several experts: what chooses among them, and in place of the matrices above, those of all experts
one behind the other. "{}" stands for an expert's number: GGUF files have all in one tensor."""
FUSED_EXPERTS = {
    "router": Name("mlp.router", "ffn_gate_inp"),
    "gate": Name("mlp.experts.gate_up_proj", "ffn_gate_exps"),
    "up": Name("mlp.experts.gate_up_proj", "ffn_up_exps"),
    "down": Name("mlp.experts.down_proj", "ffn_down_exps"),
}
"""Experts of gpt-oss, whose safetensors have all in one tensor, gate and up in turn (formats/assemble.py)."""
NORMS = {
    "attention_norms": Name("input_layernorm", "attn_norm"),
    "inner_norms": Name("post_attention_layernorm", "ffn_norm"),
}
"""Before attention, and before the products of gate and up."""
SANDWICH_NORMS = {
    "attention_norms": Name("input_layernorm", "attn_norm"),
    "after_attention_norms": Name("post_attention_layernorm", "post_attention_norm"),
    "inner_norms": Name("pre_feedforward_layernorm", "ffn_norm"),
    "after_inner_norms": Name("post_feedforward_layernorm", "post_ffw_norm"),
}
"""Before attention and before the products of gate and up, and of what each of the two adds to the residual stream."""
NORMS_AFTER = {
    "after_attention_norms": Name("post_attention_layernorm", "post_attention_norm"),
    "after_inner_norms": Name("post_feedforward_layernorm", "post_ffw_norm"),
}
"""Only of what attention and gate add to the residual stream."""
QUERY_KEY_NORMS = {
    "query_norms": Name("self_attn.q_norm", "attn_q_norm"),
    "key_norms": Name("self_attn.k_norm", "attn_k_norm"),
}
"""Norms of each head of the queries and keys, or of all heads together, before rotary positions."""
LAYER_INPUTS = {
    "layer_gate": Name("per_layer_input_gate", "inp_gate"),
    "layer_out": Name("per_layer_projection", "proj"),
}
"""Where a layer has an input of its own beside the residual stream: what opens it, and what makes it part of that."""
LAYER_INPUT_NORMS = {"after_layer_norms": Name("post_per_layer_input_norm", "post_norm")}
"""Norm of what a layer's own input adds to the residual stream."""
EXPERTS_BESIDE_MLP = {
    "router": Name("router.proj", "ffn_gate_inp"),
    "gate": Name("experts.gate_up_proj", "ffn_gate_up_exps"),
    "up": Name("experts.gate_up_proj", "ffn_gate_up_exps"),
    "down": Name("experts.down_proj", "ffn_down_exps"),
    "dense_gate": Name("mlp.gate_proj", "ffn_gate"),
    "dense_up": Name("mlp.up_proj", "ffn_up"),
    "dense_down": Name("mlp.down_proj", "ffn_down"),
}
"""Routed experts beside a dense MLP."""
NORMS_BESIDE_MLP = {
    "after_dense_norms": Name("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    "expert_norms": Name("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    "after_expert_norms": Name("post_feedforward_layernorm_2", "post_ffw_norm_2"),
}
"""Norms behind the dense MLP, before the experts, and behind them."""
ROUTER_NORMS = Name("router.scale", "ffn_gate_inp")
EXPERT_SCALES = Name("router.per_expert_scale", "ffn_down_exps")
"""What the router reads is multiplied by, and what each expert brings; of the kind "scale"."""
LAYER_SCALES = Name("layer_scalar", "layer_output_scale")
"""A number that multiplies the residual stream behind a layer."""


CLAMPED = "clamped_silu"
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", CLAMPED)
"""What transformers calls the activations of the gate that the CPU engine computes; gpt-oss' has no name there."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of MATRICES, a gated activation, RMSNorm and rotary positions, and what of it others do otherwise.

    `model_type` is transformers' name, `gguf` that of GGUF files where it is another. `norms`: the norms of a layer, by
    the names of a BlockModel's vectors; `norm_offset` is added to those of safetensors, and stands in those of GGUF
    files already. `matrices`: those of a layer by their names in a BlockModel; several that have one name are its rows,
    one behind the other. With a router among them a layer has several experts, whose width stands in config.json under
    `inner`. `experts_beside_mlp`: matrices in place of those where config.json says that layers have experts beside a
    dense MLP; their width is the moe_intermediate_size. `biases`: matrices that have them; `optional_biases`: unless
    config.json says otherwise. `sinks`: what each head looks at beside the text. `scales`: what multiplies the residual
    stream behind each layer. `value_norm`: values are normalised, without weights. `gguf_interleaved_rope`: for rotary
    positions, GGUF files pair neighbours within a head, where the engine pairs its halves; `interleaved_rope`: so do
    safetensors. `scaled_embedding`: what a token begins with is its embedding times the root of its length.

    The rest holds where config.json says nothing: `activation`, one of ACTIVATIONS; `window`: a `sliding_window`
    counts; `full_every`: of so many layers, the last sees beyond the window; `rope_base` of rotary positions, and
    `local_rope_base` of those in layers with a window, where it is another; `partial_rotary`: of a head that they turn;
    `unrotated_every`: of so many layers, the last has none; `full_unrotated`: layers without a window have none where
    others have a window; `query_scale`: what queries are multiplied by; `full_head_dim`: numbers per head in layers
    without a window, where others have one.

    model_config.py says which of all that a layer has.
    """

    model_type: str
    norms: Mapping[str, Name]
    gguf: str = ""
    matrices: Mapping[str, Name] = field(default_factory=lambda: MATRICES)
    inner: str = "intermediate_size"
    experts_beside_mlp: Mapping[str, Name] = field(default_factory=dict)
    biases: tuple[str, ...] = ()
    optional_biases: bool = False
    sinks: Name | None = None
    scales: Name | None = None
    value_norm: bool = False
    gguf_interleaved_rope: bool = False
    interleaved_rope: bool = False
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    activation: str = "silu"
    window: bool = False
    full_every: int | None = None
    rope_base: float = 10000.0
    local_rope_base: float | None = None
    partial_rotary: float = 1.0
    unrotated_every: int | None = None
    full_unrotated: bool = False
    query_scale: float | None = None
    full_head_dim: int | None = None

    @property
    def experts(self) -> bool:
        """Whether its layers have several experts, or may have them."""
        return "router" in self.matrices or bool(self.experts_beside_mlp)

    def activation_of(self, config: Mapping[str, Any]) -> str:
        """Return the activation of a model with this config.json."""
        if self.activation == CLAMPED:
            return CLAMPED
        return str(config.get("hidden_activation") or config.get("hidden_act") or self.activation)

    def biases_of(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the matrices that have biases in a model with this config.json."""
        left_out = self.optional_biases and config.get("attention_bias") is False
        return () if left_out else self.biases


_POST_ATTENTION_NORMS = NORMS | {"inner_norms": Name("post_attention_layernorm", "post_attention_norm")}
"""Norms at Llama's places, of which GGUF files call the second one otherwise."""

# EXAONE 4: norms as in OLMo 2, but of each head; where layers have windows, those without have no rotary positions
EXAONE4 = Architecture(
    model_type="exaone4",
    norms=NORMS_AFTER | QUERY_KEY_NORMS,
    window=True,
    full_every=4,
    full_unrotated=True,
)
# Gemma 2: norms around attention and gate, windows over every second layer, soft caps of scores and logits
GEMMA2 = Architecture(
    model_type="gemma2",
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
LLAMA = Architecture(model_type="llama", norms=NORMS, gguf_interleaved_rope=True)
# Granite 3: Llama with multipliers, which config.json gives
GRANITE = replace(LLAMA, model_type="granite")
# Mistral: Llama, in some versions with a sliding window over all layers
MISTRAL = Architecture(model_type="mistral", norms=NORMS, window=True)
# Ministral 3: Mistral with YaRN, and queries that grow with their position; GGUF files call it Mistral 3
MISTRAL3 = replace(LLAMA, model_type="ministral3", gguf="mistral3", window=True, rope_base=1_000_000.0)
# Mixtral, as safetensors: Llama with routed experts; its GGUF files call themselves Llama's
MIXTRAL = Architecture(
    model_type="mixtral",
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
OLMO2 = Architecture(model_type="olmo2", norms=NORMS_AFTER | QUERY_KEY_NORMS)
# OLMo 3, which GGUF files call OLMo 2: windows over three layers of four, whose rotary positions are not scaled
OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    window=True,
    full_every=4,
    rope_base=500_000.0,
    local_rope_base=500_000.0,
)
# Phi-3, Phi-4 and Phi-4-mini: Llama with one matrix for queries, keys and values, and one for gate and up
PHI3 = Architecture(
    model_type="phi3",
    norms=NORMS,
    matrices=MATRICES
    | dict.fromkeys("qkv", Name("self_attn.qkv_proj", "attn_qkv"))
    | dict.fromkeys(("gate", "up"), Name("mlp.gate_up_proj", "ffn_up")),
    window=True,
)
# Qwen2 and Qwen2.5: Llama with biases of queries, keys and values
QWEN2 = Architecture(model_type="qwen2", norms=NORMS, biases=("q", "k", "v"))
# Qwen3: Llama with norms of each head's queries and keys
QWEN3 = Architecture(model_type="qwen3", norms=NORMS | QUERY_KEY_NORMS)
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
    norms=_POST_ATTENTION_NORMS,
    biases=("q", "k", "v"),
    optional_biases=True,
)
# SmolLM3: Llama, one layer of four without rotary positions
SMOLLM3 = replace(LLAMA, model_type="smollm3", rope_base=2_000_000.0, unrotated_every=4)

_ALL = (
    EXAONE4, GEMMA2, GEMMA3, GEMMA4, GLM4, GPT_OSS, GRANITE, LLAMA, MISTRAL, MISTRAL3, MIXTRAL, OLMO2, OLMO3, PHI3,
    QWEN2, QWEN3, QWEN3MOE, SEED_OSS, SMOLLM3,
)  # fmt: skip
ARCHITECTURES = {architecture.model_type: architecture for architecture in _ALL}
"""Architectures by transformers' name."""
GGUF_ARCHITECTURES = {architecture.gguf or architecture.model_type: architecture for architecture in _ALL}
"""Architectures by the name in GGUF files."""


def unknown(name: object) -> str:
    """Describe an architecture of another name as unknown, and name those that are known."""
    return f"architecture {name} (known are {', '.join(ARCHITECTURES)})"
