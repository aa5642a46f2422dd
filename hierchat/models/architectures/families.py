"""Read how each architecture of the CPU engine (assets/architectures.yaml) differs from a Llama decoder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

from hierchat.config import shipped


class Name(NamedTuple):
    """Name of a tensor in transformers and in GGUF files. In the tables below, without its layer and its kind."""

    transformers: str
    gguf: str

    def of(self, layer: int, kind: str = "weight") -> "Name":
        """Return the whole name in a layer; `kind`: "weight" or "bias", none if the name has it."""
        kind = kind and f".{kind}"
        return Name(f"model.layers.{layer}.{self.transformers}{kind}", f"blk.{layer}.{self.gguf}{kind}")


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
FACTORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)

_TOLD = yaml.safe_load((shipped("assets") / "architectures.yaml").read_text(encoding="utf-8"))
_NAMES = {
    group: {place: Name(*both) for place, both in names.items()} for group, names in _TOLD["names"].items()
}
MATRICES, EXPERTS, FUSED_EXPERTS = _NAMES["matrices"], _NAMES["experts"], _NAMES["fused_experts"]
LAYER_INPUTS, LAYER_INPUT_NORMS = _NAMES["layer_inputs"], _NAMES["layer_input_norms"]
NORMS_BESIDE_MLP = _NAMES["norms_beside_mlp"]
ROUTER_NORMS = Name("router.scale", "ffn_gate_inp")
EXPERT_SCALES = Name("router.per_expert_scale", "ffn_down_exps")
"""What the router reads is multiplied by, and what each expert brings; of the kind "scale"."""
GATED = frozenset(("q", "k", "v", "o", "q_gate"))
"""Matrices of attention, with the gate of its output that some hybrids have."""
VECTORS = ("conv", "conv_biases", "decays", "step_biases", "skips", "state_norms", "score_biases")
"""Vectors of a layer in `mixers`, whose names are whole; of each layer, zeros in those of another kind."""


CLAMPED = "clamped_silu"
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", CLAMPED, "relu2")
"""What transformers calls the activations of the gate that the CPU engine computes; gpt-oss' has no name there."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Description of a decoder of MATRICES, a gated activation, RMSNorm and rotary positions, and of where it differs.

    `model_type` is transformers' name, `gguf` that of GGUF files where it is another. `norms`: the norms of a layer, by
    the names of a BlockModel's vectors; `norm_offset` is added to those of safetensors, and stands in those of GGUF
    files already. `matrices`: those of a layer by their names in a BlockModel; several that have one name are its rows,
    one behind the other. With a router among them a layer has several experts, whose width stands in config.json under
    `inner`. `experts_beside_mlp`: matrices in place of those where config.json says that layers have experts beside a
    dense MLP; their width is the moe_intermediate_size. `biases`: matrices that have them; `optional_biases`: unless
    config.json says otherwise. `sinks`: what each head looks at beside the text. `scales`: what multiplies the residual
    stream behind each layer. `joint_norms`: query and key norms are of all heads together. `value_norm`: values are
    normalised, without weights. `gguf_interleaved_rope`: for rotary positions, GGUF files pair neighbours within a
    head, where the engine pairs its halves; `interleaved_rope`: so do safetensors. `scaled_embedding`: what a token
    begins with is its embedding times the root of its length.

    Hybrids (mixers.py): `mixers`: matrices of a layer by its kind, in place of attention's, and VECTORS. `routed`:
    matrices of layers that have routed experts, in place of those of an MLP; `routed_inner`: key of the experts' width.
    `gguf_grouped_heads`: GGUF files, too, have the value heads of one key together, not in turn. `embedding` and
    `last_norm`: names of these where they are others.

    The rest holds where config.json says nothing: `activation`, one of ACTIVATIONS; `window`: a `sliding_window`
    counts; `full_every`: of so many layers, the last sees beyond the window; `rope_base` of rotary positions, and
    `local_rope_base` of those in layers with a window, where it is another; `partial_rotary`: of a head that they turn;
    `unrotated_every`: of so many layers, the last has none; `full_unrotated`: layers without a window have none where
    others have a window; `query_scale`: what queries are multiplied by; `full_head_dim`: numbers per head in layers
    without a window, where others have one.

    model_config.py says which of all that a layer has."""

    model_type: str
    norms: Mapping[str, Name]
    gguf: str = ""
    matrices: Mapping[str, Name] = field(default_factory=lambda: MATRICES)
    inner: str = "intermediate_size"
    experts_beside_mlp: Mapping[str, Name] = field(default_factory=dict)
    mixers: Mapping[str, Mapping[str, Name]] = field(default_factory=dict)
    routed: Mapping[str, Name] = field(default_factory=dict)
    routed_inner: str = "moe_intermediate_size"
    gguf_grouped_heads: bool = False
    embedding: Name = EMBEDDING
    last_norm: Name = LAST_NORM
    biases: tuple[str, ...] = ()
    optional_biases: bool = False
    sinks: Name | None = None
    scales: Name | None = None
    joint_norms: bool = False
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
        """Tell whether its layers have several experts, or may have them."""
        several = self.experts_beside_mlp or self.routed
        return bool(several) or any("router" in places for places in (self.matrices, *self.mixers.values()))

    def activation_of(self, config: Mapping[str, Any]) -> str:
        if self.activation == CLAMPED:
            return CLAMPED
        return str(config.get("hidden_activation") or config.get("hidden_act") or self.activation)

    def biases_of(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        left_out = self.optional_biases and config.get("attention_bias") is False
        return () if left_out else self.biases


def _joined(groups: Iterable[str | Mapping[str, list[str]]]) -> dict[str, Name]:
    joined: dict[str, Name] = {}
    for group in groups:
        own = _NAMES[group] if isinstance(group, str) else {key: Name(*both) for key, both in group.items()}
        joined |= own
    return joined


def _architectures(told: Mapping[str, Mapping[str, Any]]) -> dict[str, Architecture]:
    made: dict[str, Architecture] = {}
    for name, fields in told.items():
        given: dict[str, Any] = {"model_type": name, **fields}
        like = given.pop("like", None)
        for key in {"norms", "matrices", "experts_beside_mlp", "routed"} & given.keys():
            given[key] = _joined(given[key])
        if "mixers" in given:
            given["mixers"] = {kind: _joined(groups) for kind, groups in given["mixers"].items()}
        for key in {"sinks", "scales", "embedding", "last_norm"} & given.keys():
            given[key] = Name(*given[key])
        if "biases" in given:
            given["biases"] = tuple(given["biases"])
        made[name] = replace(made[like], **given) if like else Architecture(**given)
    return made


ARCHITECTURES = _architectures(_TOLD["architectures"])
"""Architectures by transformers' name."""


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a configuration. Raises KeyError if it is none of ARCHITECTURES."""
    return ARCHITECTURES[config["model_type"]]


GGUF_ARCHITECTURES = {
    architecture.gguf or architecture.model_type: architecture for architecture in ARCHITECTURES.values()
} | {"nemotron_h_moe": ARCHITECTURES["nemotron_h"]}
"""Architectures by the name in GGUF files."""
RENAMED = {"mimo": "qwen2"}
"""Kinds of models that transformers does not know, and the kind of which they have the layers and tensors."""


def unknown(name: object) -> str:
    """Return why an architecture is not computed: it is unknown; and name those that are known."""
    return f"architecture {name} (known are {', '.join(ARCHITECTURES)})"
