"""Read GGUF files into transformers' modules by a table of families: configuration and tensors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.families import (
    EMBEDDING,
    FACTORS,
    GGUF_ARCHITECTURES,
    HEAD,
    LAYER_EMBEDDING,
    Architecture,
)
from hierchat.models.architectures.model_config import FULL, SLIDING
from hierchat.models.formats.gguf_head import Head, by_layer, has, layers_of, needed, rope_parameters

Floats = NDArray[np.float32]
Config = Mapping[str, Any]
CONVOLUTION, STATE = "conv", "linear_attention"
"""transformers' names of layers that keep a running state."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Part:
    """Rule for making a tensor of the module. `of`: its names in the file, without the layer; none: by gguf's table.
    `whole`: a name that replaces these. `make` moves whole rows of matrices, or whole `columns`. `transposed`: the
    module has experts' matrices so, which stay as they are stored."""

    make: Callable[..., Any] = lambda tensor: tensor
    of: tuple[str, ...] = ()
    whole: str = ""
    columns: bool = False
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Family of GGUF files of one architecture. `kinds`: transformers' names of it, without pictures and with them.

    `needs` and `may`: keys of the configuration that the file must have or may have, by the file's name of each;
    `more`: the keys that are computed. `parts`: how tensors are made, by how their names end in transformers, the
    longest first; what is not named there is as gguf's table says. `unused`: how names of tensors end that a file may
    have and the module has not. `prefixes`: what names begin with in transformers, and in gguf's table."""

    gguf: str
    kinds: tuple[str, ...]
    needs: Mapping[str, str] = field(default_factory=dict)
    may: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Head], dict[str, Any]] = lambda head: {}
    parts: Callable[[Config], Mapping[str, Part]] = lambda config: {}
    unused: tuple[str, ...] = ()
    prefixes: tuple[str, str] = ("model.", "model.")

    def config(self, head: Head) -> dict[str, Any]:
        """Read the configuration of transformers' module. Raises KeyError where the head says too little."""
        shapes = {tensor.name: tensor.shape for tensor in head.tensors}
        heads, size = needed(head, "attention.head_count"), needed(head, "embedding_length")
        found = {
            "model_type": self.kinds[0],
            "hidden_size": size,
            "intermediate_size": head.of_architecture("feed_forward_length"),
            "num_hidden_layers": layers_of(head),
            "num_attention_heads": heads,
            "num_key_value_heads": head.of_architecture("attention.head_count_kv"),
            "head_dim": head.of_architecture("attention.key_length") or size // heads,
            "max_position_embeddings": needed(head, "context_length"),
            "rms_norm_eps": head.of_architecture("attention.layer_norm_rms_epsilon"),
            "vocab_size": shapes[EMBEDDING.gguf][-1] if EMBEDDING.gguf in shapes else None,
            "tie_word_embeddings": HEAD.gguf not in shapes,
            "rope_parameters": rope_parameters(head),
            **{key: needed(head, name) for key, name in self.needs.items()},
            **{key: head.of_architecture(name) for key, name in self.may.items()},
            **self.more(head),
        }
        return {key: _decimal(value) for key, value in found.items() if value is not None}


def joined(axis: int) -> Callable[..., Floats]:
    return lambda *tensors: np.concatenate(tensors, axis=axis)


def logarithm(tensor: Floats) -> Floats:
    """Return A_log of the decay that files have, which is -exp(A_log)."""
    return np.log(-tensor.astype(np.float64)).astype(np.float32)


def halves(heads: int) -> Part:
    """Return the part that puts rows of queries or keys from interleaved into half-split rotary order."""

    def half_split(tensor: Floats) -> Floats:
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        return pairs.swapaxes(1, 2).reshape(tensor.shape)

    return Part(half_split)


_APART = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
EXPERTS = {
    "experts.gate_up_proj": Part(joined(1), _APART, "ffn_gate_up_exps.weight"),
    "experts.down_proj": Part(of=("ffn_down_exps.weight",)),
}
STATES = {"A_log": Part(logarithm), "dt_bias": Part(of=("ssm_dt.bias",))}
NORMS_LESS_ONE = {"norm.weight": Part(lambda norm: norm - np.float32(1))}
"""Of modules that multiply by a norm's weight plus one, which is what files have."""
SCORE_BIASES = dict.fromkeys(("e_score_correction_bias", "expert_bias"), Part(of=("exp_probs_b.bias",)))
"""Biases of routers, added to experts' scores where they are chosen."""


# What heads of files say of families
def _shape(head: Head, name: str, axis: int) -> int | None:
    return next((tensor.shape[axis] for tensor in head.tensors if tensor.name == name), None)


def _state_sizes(head: Head, *names: str) -> dict[str, int]:
    """Return sizes of layers with a running state by `names`: convolution, state, groups, heads, numbers per head.
    Raises ValueError if they do not fit each other."""
    keys = ("conv_kernel", "state_size", "group_count", "time_step_rank")
    found = [int(needed(head, f"ssm.{key}")) for key in keys]
    inner, (*_, groups, heads) = int(needed(head, "ssm.inner_size")), found
    if min(inner, *found) < 1 or inner % heads or heads % groups:
        raise ValueError(f"its state of {inner} numbers has {heads} heads in {groups} groups")
    return dict(zip(names, [*found, inner // heads], strict=True))


def _decimal(value: Any) -> Any:
    """Write a number that the file has in float32 as it was meant: 0.22, not 0.2199999988."""
    if isinstance(value, float) and abs(value) <= _LARGEST:
        return float(str(np.float32(value)))
    if isinstance(value, dict):
        return {key: _decimal(one) for key, one in value.items()}
    return value


def _attentive(head: Head, other: str) -> dict[str, Any]:
    heads = by_layer(head, "attention.head_count_kv")
    return {"layer_types": [FULL if one else other for one in heads], "num_key_value_heads": max(heads)}


_COUNTED = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_ROUTED = {**_COUNTED, "moe_intermediate_size": "expert_feed_forward_length"}
_SCORED = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
_WEIGHED = {"norm_topk_prob": "expert_weights_norm", "routed_scaling_factor": "expert_weights_scale"}
_WITH_SHARED = {
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


def _with_windows(head: Head) -> dict[str, Any]:
    every = head.of_architecture("attention.sliding_window_pattern") or 4
    return {"layer_types": [SLIDING if (layer + 1) % every else FULL for layer in range(layers_of(head))]}


# Gemma 3n, its text model: four streams side by side (AltUp), per-layer inputs, keys that layers share
def _gemma3n(head: Head) -> dict[str, Any]:
    rope = rope_parameters(head)
    rope.pop("partial_rotary_factor")
    local = head.of_architecture("rope.freq_base_swa") or 10_000.0
    windowed = by_layer(head, "attention.sliding_window_pattern")
    deviations = by_layer(head, "activation_sparsity_scale")
    return {
        "intermediate_size": by_layer(head, "feed_forward_length"),
        "layer_types": [SLIDING if one else FULL for one in windowed],
        "rope_parameters": {FULL: rope, SLIDING: {"rope_type": "default", "rope_theta": local}},
        "vocab_size_per_layer_input": _shape(head, LAYER_EMBEDDING.gguf, -1),
        "laurel_rank": _shape(head, "blk.0.laurel_l.weight", 1),
        # Files have standard deviations of a normal distribution; transformers the share below them
        "activation_sparsity_pattern": [round((1 + math.erf(one / 2**0.5)) / 2, 6) for one in deviations],
    }


def _gemma3n_parts(config: Config) -> Mapping[str, Part]:
    names = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}
    return {
        f"{name}.{stream}.weight": Part(itemgetter(stream), (f"{ours}.weight",))
        for name, ours in names.items()
        for stream in range(config["altup_num_inputs"] - 1)
    }


# GLM 4 with experts, such as GLM 4.5 Air
def _glm4moe(head: Head) -> dict[str, Any]:
    return {
        "attention_bias": has(head, "attn_q.bias"),
        "use_qk_norm": has(head, "attn_q_norm.weight"),
        "first_k_dense_replace": head.of_architecture("leading_dense_block_count") or 0,
        "num_nextn_predict_layers": head.of_architecture("nextn_predict_layers") or 0,
    }


# Granite 4 (Mamba 2 and attention, with experts or without), and Granite MoE. Queries and keys are interleaved as
# Llama's are, even where there are no rotary positions.

GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}


def _granite_experts(head: Head) -> dict[str, Any]:
    return {
        "num_local_experts": head.of_architecture("expert_count") or 0,
        "num_experts_per_tok": head.of_architecture("expert_used_count") or 0,
    }


def _granite_hybrid(head: Head) -> dict[str, Any]:
    names = ("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_d_head")
    shared = head.of_architecture("expert_shared_feed_forward_length")
    return {
        **_granite_experts(head),
        **_attentive(head, STATE),
        **_state_sizes(head, *names),
        "mamba_expand": int(needed(head, "ssm.inner_size")) // int(head.of_architecture("embedding_length")),
        "shared_intermediate_size": shared or head.of_architecture("feed_forward_length"),
        "position_embedding_type": "rope" if head.of_architecture("rope.scaling.finetuned") else None,
        "mamba_conv_bias": has(head, "ssm_conv1d.bias"),
        "mamba_proj_bias": has(head, "ssm_in.bias"),
    }


def _granite_moe(head: Head) -> dict[str, Any]:
    shared = head.of_architecture("expert_shared_feed_forward_length")
    kind = "granitemoeshared" if shared else "granitemoe"
    return {**_granite_experts(head), "model_type": kind, "shared_intermediate_size": shared or None}


def _granite_parts(config: Config) -> Mapping[str, Part]:
    shared = "_shexp" if config["num_local_experts"] else ""
    return {
        **EXPERTS,
        **STATES,
        "self_attn.q_proj.weight": halves(config["num_attention_heads"]),
        "self_attn.k_proj.weight": halves(config["num_key_value_heads"]),
        "block_sparse_moe.router.weight": Part(of=("ffn_gate_inp.weight",)),
        "shared_mlp.input_linear.weight": Part(
            joined(0), (f"ffn_gate{shared}.weight", f"ffn_up{shared}.weight")
        ),
        "shared_mlp.output_linear.weight": Part(of=(f"ffn_down{shared}.weight",)),
        "mamba.norm.weight": Part(np.ravel),
    }


# LFM2: short convolutions and attention; with experts, where only the first layers are dense
def _lfm2(head: Head) -> dict[str, Any]:
    found = {**_attentive(head, CONVOLUTION), "conv_bias": has(head, "shortconv.conv.bias")}
    if head.architecture == "lfm2moe":
        return {**found, "use_expert_bias": has(head, "exp_probs_b.bias")}
    return {**found, "block_auto_adjust_ff_dim": False}  # files have the size that it leads to


_LFM2 = {"conv_L_cache": "shortconv.l_cache"}
_LFM2_MAY = {"norm_eps": "attention.layer_norm_rms_epsilon"}
_LFM2_PARTS = {**EXPERTS, **SCORE_BIASES}


# Nemotron H: a layer is Mamba 2, attention, or an MLP, dense or of experts. llama.cpp converts it as Granite's hybrids,
# so queries and keys are interleaved though nothing rotates them.
def _nemotron_h(head: Head) -> dict[str, Any]:
    attentive, wide = by_layer(head, "attention.head_count_kv"), by_layer(head, "feed_forward_length")
    routed = {tensor.name for tensor in head.tensors if tensor.name.endswith("ffn_gate_inp.weight")}

    def kind(layer: int) -> str:
        if attentive[layer]:
            return FULL
        if not wide[layer]:
            return STATE
        return "moe" if f"blk.{layer}.ffn_gate_inp.weight" in routed else "mlp"

    found = {
        **_state_sizes(
            head, "conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads", "mamba_head_dim"
        ),
        "layers_block_type": [kind(layer) for layer in range(len(attentive))],
        "num_key_value_heads": max(attentive),
        "intermediate_size": max(wide),
        "use_conv_bias": has(head, "ssm_conv1d.bias"),
        "use_bias": has(head, "ssm_in.bias"),
    }
    if routed:
        width = {"moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
        found |= {key: needed(head, name) for key, name in (_WITH_SHARED | _WEIGHED | width).items()}
        found |= {key: head.of_architecture(name) for key, name in _SCORED.items()}
        found["moe_latent_size"] = head.of_architecture("moe_latent_size")
    return found


def _nemotron_h_parts(config: Config) -> Mapping[str, Part]:
    return {
        **STATES,
        **SCORE_BIASES,
        "mixer.q_proj.weight": halves(config["num_attention_heads"]),
        "mixer.k_proj.weight": halves(config["num_key_value_heads"]),
        "mixer.norm.weight": Part(np.ravel),
        "mixer.experts.up_proj": Part(of=("ffn_up_exps.weight",)),
        "mixer.experts.down_proj": Part(of=("ffn_down_exps.weight",)),
    }


# Qwen2 with experts, such as Qwen1.5-MoE. Early files do not say how wide experts are.
def _qwen2moe(head: Head) -> dict[str, Any]:
    return {
        "moe_intermediate_size": _shape(head, "blk.0.ffn_down_exps.weight", 0),
        "shared_expert_intermediate_size": _shape(head, "blk.0.ffn_down_shexp.weight", 0),
    }


# Qwen3.5 and 3.6, dense and with experts, and Qwen3-Next: three layers of Gated DeltaNet, one of attention. Files of
# Qwen3.5 have the value heads in turn: the first of each key's, then the second of each; transformers has a key's
# together. Qwen3-Next's files cut apart what transformers projects at once, key by key.

_QWEN35_EXPERTS = _ROUTED | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
_QWEN35_NORMS = {**NORMS_LESS_ONE, "linear_attn.norm.weight": Part()}


def _qwen3next(head: Head) -> dict[str, Any]:
    layers, every = layers_of(head), head.of_architecture("full_attention_interval") or 4
    recurrent = head.of_layers("attention.recurrent_layers")[:layers]
    recurrent = recurrent or [bool((layer + 1) % every) for layer in range(layers)]
    names = [
        f"linear_{name}" for name in ("conv_kernel_dim", "key_head_dim", "num_key_heads", "num_value_heads")
    ]
    sizes = _state_sizes(head, *names, "linear_value_head_dim")
    return {
        **sizes,
        "layer_types": [STATE if one else FULL for one in recurrent],
        "mtp_num_hidden_layers": head.of_architecture("nextn_predict_layers"),
    }


def _qwen35(head: Head) -> dict[str, Any]:
    # Rotary positions of pictures have three axes; in texts all three are the same
    sections = head.of_layers("rope.dimension_sections")[:3] or None
    return {**_qwen3next(head), "rope_parameters": rope_parameters(head, mrope_section=sections)}


def _by_keys(config: Config, axis: int, tensor: Floats, size: int | None = None) -> Floats:
    """Group value heads by their keys. `size`: numbers of a head."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    before, behind = tensor.shape[:axis], tensor.shape[axis + 1 :]
    heads = tensor.reshape(*before, values // keys, keys, size or config["linear_value_head_dim"], *behind)
    return heads.swapaxes(axis, axis + 1).reshape(tensor.shape)


def _qwen35_parts(config: Config) -> Mapping[str, Part]:
    rows, numbers = partial(_by_keys, config, 0), partial(_by_keys, config, 0, size=1)
    first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]  # queries and keys

    def values(tensor: Floats) -> Floats:
        return np.concatenate([tensor[:first], rows(tensor[first:])])

    return {
        **_QWEN35_NORMS,
        **EXPERTS,
        "linear_attn.in_proj_qkv.weight": Part(values),
        "linear_attn.conv1d.weight": Part(values),
        "linear_attn.in_proj_z.weight": Part(rows),
        "linear_attn.in_proj_a.weight": Part(numbers),
        "linear_attn.in_proj_b.weight": Part(numbers),
        "linear_attn.out_proj.weight": Part(partial(_by_keys, config, 1), columns=True),
        "linear_attn.A_log": Part(lambda tensor: numbers(logarithm(tensor))),
        "linear_attn.dt_bias": Part(numbers, STATES["dt_bias"].of),
    }


def _qwen3next_parts(config: Config) -> Mapping[str, Part]:
    keys = config["linear_num_key_heads"]
    first = keys * config["linear_key_head_dim"]

    def key_by_key(projected: Floats, gate: Floats) -> Floats:
        queries, its_keys, values = np.split(projected, [first, 2 * first])
        apart = [one.reshape(keys, -1, one.shape[-1]) for one in (queries, its_keys, values, gate)]
        return np.concatenate(apart, axis=1).reshape(-1, projected.shape[-1])

    of = ("attn_qkv.weight", "attn_gate.weight")
    return {
        **_QWEN35_NORMS,
        **EXPERTS,
        **STATES,
        "linear_attn.in_proj_qkvz.weight": Part(key_by_key, of, "ssm_in.weight"),
    }


_ALL = (
    Family(  # such as Command R7B: windows but in every fourth layer
        "cohere2",
        ("cohere2",),
        needs={
            "sliding_window": "attention.sliding_window",
            "layer_norm_eps": "attention.layer_norm_epsilon",
            "logit_scale": "logit_scale",
        },
        more=_with_windows,
    ),
    Family(
        "gemma3n",
        ("gemma3n_text", "gemma3n"),
        needs={
            "sliding_window": "attention.sliding_window",
            "hidden_size_per_layer_input": "embedding_length_per_layer_input",
            "altup_active_idx": "altup.active_idx",
            "altup_num_inputs": "altup.num_inputs",
            "num_kv_shared_layers": "attention.shared_kv_layers",
        },
        may={"final_logit_softcapping": "final_logit_softcapping"},
        more=_gemma3n,
        parts=_gemma3n_parts,
        unused=("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"),
    ),
    Family(
        "glm4moe",
        ("glm4_moe",),
        needs=_WITH_SHARED,
        may=_SCORED | _WEIGHED,
        more=_glm4moe,
        parts=lambda config: EXPERTS | SCORE_BIASES,
    ),
    Family("granitehybrid", ("granitemoehybrid",), needs=GRANITE, more=_granite_hybrid, parts=_granite_parts),
    Family(
        "granitemoe",
        ("granitemoe", "granitemoeshared"),
        needs=GRANITE,
        more=_granite_moe,
        parts=_granite_parts,
    ),
    Family("lfm2", ("lfm2",), needs=_LFM2, may=_LFM2_MAY, more=_lfm2, parts=lambda config: _LFM2_PARTS),
    Family(
        "lfm2moe",
        ("lfm2_moe",),
        needs=_LFM2 | _ROUTED | {"num_dense_layers": "leading_dense_block_count"},
        may=_LFM2_MAY,
        more=_lfm2,
        parts=lambda config: _LFM2_PARTS,
    ),
    *(
        Family(
            name,
            ("nemotron_h",),
            may={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"},
            more=_nemotron_h,
            parts=_nemotron_h_parts,
            prefixes=("model.", "backbone."),
        )
        for name in ("nemotron_h", "nemotron_h_moe")
    ),
    Family(
        "olmoe",
        ("olmoe",),
        needs=_COUNTED,
        may={"clip_qkv": "attention.clamp_kqv"},
        more=lambda head: {"norm_topk_prob": False},
        parts=lambda config: EXPERTS,
    ),
    Family("qwen2moe", ("qwen2_moe",), needs=_COUNTED, more=_qwen2moe, parts=lambda config: EXPERTS),
    Family("qwen35", ("qwen3_5_text", "qwen3_5"), more=_qwen35, parts=_qwen35_parts),
    Family(
        "qwen35moe",
        ("qwen3_5_moe_text", "qwen3_5_moe"),
        needs=_QWEN35_EXPERTS,
        more=_qwen35,
        parts=_qwen35_parts,
    ),
    Family("qwen3next", ("qwen3_next",), needs=_QWEN35_EXPERTS, more=_qwen3next, parts=_qwen3next_parts),
)
FAMILIES = {family.gguf: family for family in _ALL}
"""Families by the name of the architecture in GGUF files."""


def _in_turn(gate: Floats, up: Floats) -> Floats:
    return np.stack([gate, up], -1).reshape(len(gate), -1)


_WITH_EXPERTS = {
    "gemma4": {
        **EXPERTS,
        "router.scale": Part(of=("ffn_gate_inp.scale",)),
        "router.per_expert_scale": Part(of=("ffn_down_exps.scale",)),
    },
    "gpt-oss": {
        "experts.gate_up_proj": Part(of=_APART, transposed=True),
        "experts.down_proj": Part(of=("ffn_down_exps.weight",), transposed=True),
        "experts.gate_up_proj_bias": Part(_in_turn, ("ffn_gate_exps.bias", "ffn_up_exps.bias")),
        "experts.down_proj_bias": Part(of=("ffn_down_exps.bias",)),
    },
    "qwen3moe": EXPERTS,
}


def _parts(architecture: Architecture, config: Config) -> Mapping[str, Part]:
    norms = NORMS_LESS_ONE if architecture.norm_offset else {}
    parts = {**norms, **_WITH_EXPERTS.get(architecture.gguf, {})}
    if not architecture.gguf_interleaved_rope or architecture.interleaved_rope:
        return parts
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    kinds = ("weight", "bias")
    return parts | {
        f"self_attn.{name}_proj.{kind}": halves(count) for name, count in heads.items() for kind in kinds
    }


def _configured(name: str, *others: str) -> Family:
    architecture = GGUF_ARCHITECTURES[name]
    kinds = (architecture.model_type, *others)
    return Family(name, kinds, parts=partial(_parts, architecture), unused=FACTORS)


_CONFIGURED = (
    "exaone4", "gemma2", "gemma3", "gemma4", "glm4", "gpt-oss", "granite", "llama", "mistral3", "phi3", "qwen2",
    "qwen3", "qwen3moe", "seed_oss", "smollm3",
)  # fmt: skip
"""Architectures that gguf_config.py configures."""
IN_BLOCKS = {
    **{name: _configured(name) for name in _CONFIGURED},
    "olmo2": _configured("olmo2", "olmo3"),
    **{name: family for name, family in FAMILIES.items() if name != "gemma3n"},  # it has rows of four numbers
}
"""Families whose matrices stay in the file's blocks on a GPU (engine/cuda/packed.py)."""
