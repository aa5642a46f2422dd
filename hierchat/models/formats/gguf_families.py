"""Cohere 2, such as Command R7B: attention beside what feeds forward, windows but in every fourth layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import EMBEDDING, HEAD, LAYER_EMBEDDING, LONG_FACTORS
from hierchat.models.formats.gguf_head import Head

# What a family of GGUF files says: its configuration in transformers' terms, and out of which tensors of
# the file those of transformers' module are made. llama.cpp's converter is what is undone.


Floats = NDArray[np.float32]
Config = Mapping[str, Any]


def itself(tensor: Floats) -> Floats:
    """As the file has it."""
    return tensor


@dataclass(frozen=True, slots=True)
class Part:
    """How a tensor of the module is made. `of`: names in the file, those of a layer without the layer; none: the one
    that gguf's own table names. `whole`: what stands for it as it is, where the file has it. Dimensions of one are not
    counted.

    Of matrices `make` moves whole rows, or with `columns` whole columns, and computes nothing: so it can be asked which
    go where."""

    make: Callable[..., Any] = itself
    of: tuple[str, ...] = ()
    whole: str = ""
    columns: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """`kinds`: transformers' names of what its files may be, with pictures and without. `parts`: by how names end in
    transformers, the longest first; what is not named there is as gguf's table says. `unused`: how names of tensors end
    that a file may have and the module has not. `prefixes`: what names begin with in transformers, and in gguf's
    table."""

    gguf: str
    kinds: tuple[str, ...]
    config: Callable[[Head], dict[str, Any]]
    parts: Callable[[Config], Mapping[str, Part]]
    unused: tuple[str, ...] = ()
    prefixes: tuple[str, str] = ("model.", "model.")


def joined(axis: int) -> Callable[..., Floats]:
    """Tensors behind each other."""
    return lambda *tensors: np.concatenate(tensors, axis=axis)


def minus_one(tensor: Floats) -> Floats:
    """Weights of a norm to which transformers adds one; files have the sum."""
    return tensor - np.float32(1)


def logarithm(tensor: Floats) -> Floats:
    """A_log of the decay that files have, which is -exp(A_log)."""
    return np.log(-tensor.astype(np.float64)).astype(np.float32)


def halves(heads: int) -> Part:
    """Rows of queries or keys whose neighbours are rotated together, as transformers has them: in halves."""

    def apart(tensor: Floats) -> Floats:
        pairs = tensor.reshape(heads, -1, 2, *tensor.shape[1:])
        return pairs.swapaxes(1, 2).reshape(tensor.shape)

    return Part(apart)


EXPERTS = {
    "experts.gate_up_proj": Part(
        joined(1), ("ffn_gate_exps.weight", "ffn_up_exps.weight"), "ffn_gate_up_exps.weight"
    ),
    "experts.down_proj": Part(of=("ffn_down_exps.weight",)),
}
"""Of all experts of a layer."""
STATES = {"A_log": Part(logarithm), "dt_bias": Part(of=("ssm_dt.bias",))}
"""Of a layer that keeps a running state."""
SCORE_BIAS = {"e_score_correction_bias": Part(of=("exp_probs_b.bias",))}
"""What is added to experts' scores where they are chosen."""


# What a GGUF file's head says of rotary positions, in transformers' terms.


def partial_rotary(head: Head) -> float | None:
    """Of a head's numbers, where rotary positions do not turn all of them."""
    turned, heads = head.of_architecture("rope.dimension_count"), head.of_architecture("attention.head_count")
    if not turned or not heads:
        return None
    size = head.of_architecture("attention.key_length") or head.of_architecture("embedding_length") // heads
    return turned / size if turned < size else None


def scaling_of(head: Head) -> dict[str, Any] | None:
    """How rotary positions are scaled; None where they are not."""
    kind = head.of_architecture("rope.scaling.type")
    if any(tensor.name == LONG_FACTORS for tensor in head.tensors):
        kind = "longrope"  # older files do not say it
    if kind in (None, "none"):
        return None
    found = {
        "rope_type": kind,
        "factor": head.of_architecture("rope.scaling.factor"),
        "original_max_position_embeddings": head.of_architecture("rope.scaling.original_context_length"),
        "beta_fast": head.of_architecture("rope.scaling.yarn_beta_fast"),
        "beta_slow": head.of_architecture("rope.scaling.yarn_beta_slow"),
        "truncate": False if head.architecture == "gpt-oss" else None,  # as it was trained
    }
    if kind == "longrope":
        found["attention_factor"] = head.of_architecture("rope.scaling.attn_factor")
    if both := head.of_architecture("rope.scaling.yarn_log_multiplier"):
        found |= {"mscale": both, "mscale_all_dim": both}
    found["llama_4_scaling_beta"] = head.of_architecture("attention.temperature_scale")
    return {key: value for key, value in found.items() if value is not None}


# What the heads of all families say in the same way.


_LARGEST = float(np.finfo(np.float32).max)
CONVOLUTION, FULL, SLIDING, STATE = "conv", "full_attention", "sliding_attention", "linear_attention"
"""Kinds of layers, as transformers calls them."""


def common(head: Head, **also: Any) -> dict[str, Any]:
    """The configuration of an ordinary decoder, and `also` where that is not None. Raises KeyError where the head says
    too little."""
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    heads, size = needed(head, "attention.head_count"), needed(head, "embedding_length")
    found = {
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
        "rope_parameters": rotations(head),
        **also,
    }
    return {key: _decimal(value) for key, value in found.items() if value is not None}


def needed(head: Head, key: str) -> Any:
    """A value without which transformers would take a usual one. Raises KeyError where the head has none."""
    if (value := head.of_architecture(key)) is None:
        raise KeyError(key)
    return value


def layers_of(head: Head) -> int:
    """Without those that guess further tokens, which stand behind the others."""
    return int(needed(head, "block_count")) - int(head.of_architecture("nextn_predict_layers") or 0)


def by_layer(head: Head, key: str) -> list[Any]:
    """A number for each layer, whether the file has one for each or one for all."""
    layers = layers_of(head)
    return head.of_layers(key)[:layers] or [head.of_architecture(key) or 0] * layers


def has(head: Head, ending: str) -> bool:
    """Whether any tensor's name ends so."""
    return any(tensor.name.endswith(ending) for tensor in head.tensors)


def rotations(head: Head, **also: Any) -> dict[str, Any]:
    """Rotary positions, of which not all numbers of a head need be turned."""
    found = {"rope_type": "default", "rope_theta": head.of_architecture("rope.freq_base"), **also}
    found |= {"partial_rotary_factor": partial_rotary(head) or 1.0, **(scaling_of(head) or {})}
    return {key: value for key, value in found.items() if value is not None}


def states(head: Head) -> Mapping[str, int]:
    """Sizes of layers that keep a running state, by what `ssm.` keys call them, and `head`: numbers of a head."""
    keys = ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
    found = {key: int(needed(head, f"ssm.{key}")) for key in keys}
    return {**found, "head": found["inner_size"] // found["time_step_rank"]}


def _decimal(value: Any) -> Any:
    """A number that the file has in float32, as it was written down: 0.22, not 0.2199999988."""
    if isinstance(value, float) and abs(value) <= _LARGEST:
        return float(str(np.float32(value)))
    if isinstance(value, dict):
        return {key: _decimal(one) for key, one in value.items()}
    return value


# Cohere 2, such as Command R7B: attention beside the MLP, windows but in every fourth layer.


_COHERE2_EVERY = 4


def _cohere2_config(head: Head) -> dict[str, Any]:
    every = head.of_architecture("attention.sliding_window_pattern") or _COHERE2_EVERY
    return common(
        head,
        model_type="cohere2",
        sliding_window=needed(head, "attention.sliding_window"),
        layer_types=[SLIDING if (layer + 1) % every else FULL for layer in range(layers_of(head))],
        layer_norm_eps=needed(head, "attention.layer_norm_epsilon"),
        logit_scale=needed(head, "logit_scale"),
    )


COHERE2 = (Family("cohere2", ("cohere2",), _cohere2_config, lambda config: {}),)


# Gemma 3n, of texts: four streams side by side (AltUp), inputs of layers, keys that layers share.


_GEMMA3N_LOCAL_BASE = 10_000.0
"""Of rotary positions in layers with a window, where a file does not say it."""


def _gemma3n_config(head: Head) -> dict[str, Any]:
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    scales = by_layer(head, "activation_sparsity_scale")
    whole = rotations(head)
    whole.pop("partial_rotary_factor")
    local = head.of_architecture("rope.freq_base_swa") or _GEMMA3N_LOCAL_BASE
    return common(
        head,
        model_type="gemma3n_text",
        intermediate_size=by_layer(head, "feed_forward_length"),
        sliding_window=needed(head, "attention.sliding_window"),
        layer_types=[SLIDING if one else FULL for one in by_layer(head, "attention.sliding_window_pattern")],
        rope_parameters={FULL: whole, SLIDING: {"rope_type": "default", "rope_theta": local}},
        final_logit_softcapping=head.of_architecture("final_logit_softcapping"),
        vocab_size_per_layer_input=shapes[LAYER_EMBEDDING.gguf][-1]
        if LAYER_EMBEDDING.gguf in shapes
        else None,
        hidden_size_per_layer_input=needed(head, "embedding_length_per_layer_input"),
        altup_active_idx=needed(head, "altup.active_idx"),
        altup_num_inputs=needed(head, "altup.num_inputs"),
        num_kv_shared_layers=needed(head, "attention.shared_kv_layers"),
        laurel_rank=shapes["blk.0.laurel_l.weight"][1] if "blk.0.laurel_l.weight" in shapes else None,
        activation_sparsity_pattern=[_gemma3n_share(one) for one in scales],
    )


def _gemma3n_share(deviations: float) -> float:
    """Of a normal distribution, what lies below so many standard deviations; files have these."""
    return round((1 + math.erf(deviations / math.sqrt(2))) / 2, 6)


def _gemma3n_parts(config: Config) -> Mapping[str, Part]:
    def one(stream: int, name: str) -> Part:
        def taken(tensor: Floats) -> Floats:
            return np.asarray(tensor[stream])

        return Part(taken, (name,))

    return {
        f"{said}.{stream}.weight": one(stream, f"{name}.weight")
        for said, name in (
            ("altup_projections", "altup_proj"),
            ("altup_unembed_projections", "altup_unembd_proj"),
        )
        for stream in range(config["altup_num_inputs"] - 1)
    }


GEMMA3N = (
    Family(
        "gemma3n",
        ("gemma3n_text", "gemma3n"),
        _gemma3n_config,
        _gemma3n_parts,
        unused=("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"),
    ),
)


# GLM 4 with experts, such as GLM 4.5 Air. Its files have the layer that guesses further tokens, too.


def _glm4moe_config(head: Head) -> dict[str, Any]:
    return common(
        head,
        model_type="glm4_moe",
        attention_bias=has(head, "attn_q.bias"),
        use_qk_norm=has(head, "attn_q_norm.weight"),
        first_k_dense_replace=head.of_architecture("leading_dense_block_count") or 0,
        n_routed_experts=needed(head, "expert_count"),
        n_shared_experts=needed(head, "expert_shared_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        moe_intermediate_size=needed(head, "expert_feed_forward_length"),
        norm_topk_prob=head.of_architecture("expert_weights_norm"),
        routed_scaling_factor=head.of_architecture("expert_weights_scale"),
        n_group=head.of_architecture("expert_group_count"),
        topk_group=head.of_architecture("expert_group_used_count"),
        num_nextn_predict_layers=0,
    )


GLM4MOE = (Family("glm4moe", ("glm4_moe",), _glm4moe_config, lambda config: EXPERTS | SCORE_BIAS),)


# Granite 4 (Mamba 2 and attention, with experts or without), and Granite MoE. Queries and keys are turned
# for rotary positions as Llama's are, even where there are none.


def _granite_config(head: Head, kind: str, **also: Any) -> dict[str, Any]:
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


def _granite_with_states(head: Head) -> dict[str, Any]:
    sizes, attentive = states(head), by_layer(head, "attention.head_count_kv")
    shared = head.of_architecture("expert_shared_feed_forward_length")
    return _granite_config(
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


def _granite_with_experts(head: Head) -> dict[str, Any]:
    shared = head.of_architecture("expert_shared_feed_forward_length")
    kind = "granitemoeshared" if shared else "granitemoe"
    return _granite_config(head, kind, shared_intermediate_size=shared or None)


def _granite_parts(config: Config) -> Mapping[str, Part]:
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


GRANITE = (
    Family("granitehybrid", ("granitemoehybrid",), _granite_with_states, _granite_parts),
    Family("granitemoe", ("granitemoe", "granitemoeshared"), _granite_with_experts, _granite_parts),
)


# LFM2: short convolutions and attention; with experts, where only the first layers are dense.


def _lfm2_config(head: Head, kind: str, **also: Any) -> dict[str, Any]:
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


def _lfm2_dense(head: Head) -> dict[str, Any]:
    return _lfm2_config(head, "lfm2", block_auto_adjust_ff_dim=False)  # files have the size that it leads to


def _lfm2_with_experts(head: Head) -> dict[str, Any]:
    return _lfm2_config(
        head,
        "lfm2_moe",
        num_dense_layers=needed(head, "leading_dense_block_count"),
        num_experts=needed(head, "expert_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        moe_intermediate_size=needed(head, "expert_feed_forward_length"),
        use_expert_bias=has(head, "exp_probs_b.bias"),
    )


def _lfm2_parts(config: Config) -> Mapping[str, Part]:
    return {**EXPERTS, "feed_forward.expert_bias": Part(of=("exp_probs_b.bias",))}


LFM2 = (
    Family("lfm2", ("lfm2",), _lfm2_dense, _lfm2_parts),
    Family("lfm2moe", ("lfm2_moe",), _lfm2_with_experts, _lfm2_parts),
)


# Nemotron H: a layer is Mamba 2, attention, or what feeds forward, dense or of experts. Made as Granite's
# hybrids are, so queries and keys are turned though nothing rotates them.


def _nemotron_h_config(head: Head) -> dict[str, Any]:
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
        **(_nemotron_h_experts(head) if of_experts else {}),
    )


def _nemotron_h_experts(head: Head) -> dict[str, Any]:
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


def _nemotron_h_parts(config: Config) -> Mapping[str, Part]:
    return {
        **STATES,
        **SCORE_BIAS,
        "mixer.q_proj.weight": halves(config["num_attention_heads"]),
        "mixer.k_proj.weight": halves(config["num_key_value_heads"]),
        "mixer.norm.weight": Part(np.ravel),
        "mixer.experts.up_proj": Part(of=("ffn_up_exps.weight",)),
        "mixer.experts.down_proj": Part(of=("ffn_down_exps.weight",)),
    }


NEMOTRON_H = tuple(
    Family(name, ("nemotron_h",), _nemotron_h_config, _nemotron_h_parts, prefixes=("model.", "backbone."))
    for name in ("nemotron_h", "nemotron_h_moe")
)


# OLMoE: experts in every layer, norms of whole queries and keys.


def _olmoe_config(head: Head) -> dict[str, Any]:
    return common(
        head,
        model_type="olmoe",
        num_experts=needed(head, "expert_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        clip_qkv=head.of_architecture("attention.clamp_kqv"),
        norm_topk_prob=False,
    )


OLMOE = (Family("olmoe", ("olmoe",), _olmoe_config, lambda config: EXPERTS),)


# Qwen3.5 and 3.6, dense and with experts, and Qwen3-Next: three layers of Gated DeltaNet, one of attention.
# Files of Qwen3.5 have the heads of values in turn: the first of each key's, then the second of each.
# Transformers has all of a key's heads together. Qwen3-Next's files cut apart what transformers projects at
# once, key by key.


_QWEN35_EVERY = 4
"""Layers of which one is of attention, where a file does not say it."""
_QWEN35_NORMS = {"norm.weight": Part(minus_one), "linear_attn.norm.weight": Part(itself)}


def _qwen35_config(head: Head, kind: str, **also: Any) -> dict[str, Any]:
    sizes = states(head)
    layers, every = layers_of(head), head.of_architecture("full_attention_interval") or _QWEN35_EVERY
    recurrent = head.of_layers("attention.recurrent_layers")[:layers] or [
        bool((layer + 1) % every) for layer in range(layers)
    ]
    return common(
        head,
        model_type=kind,
        layer_types=[STATE if one else FULL for one in recurrent],
        linear_conv_kernel_dim=sizes["conv_kernel"],
        linear_key_head_dim=sizes["state_size"],
        linear_value_head_dim=sizes["head"],
        linear_num_key_heads=sizes["group_count"],
        linear_num_value_heads=sizes["time_step_rank"],
        **also,
    )


def _qwen35_with_experts(head: Head, kind: str, **also: Any) -> dict[str, Any]:
    return _qwen35_config(
        head,
        kind,
        num_experts=needed(head, "expert_count"),
        num_experts_per_tok=needed(head, "expert_used_count"),
        moe_intermediate_size=needed(head, "expert_feed_forward_length"),
        shared_expert_intermediate_size=needed(head, "expert_shared_feed_forward_length"),
        **also,
    )


def _qwen35_three_axes(head: Head) -> dict[str, Any]:
    """Rotary positions that pictures have in three; of texts all three are the same."""
    sections = head.of_layers("rope.dimension_sections")[:3] or None
    return {"rope_parameters": rotations(head, mrope_section=sections)}


def _qwen35_grouped(config: Config, axis: int, size: int | None = None) -> Callable[[Floats], Floats]:
    """Heads of values in turn -> by keys. `size`: numbers of a head."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size = size or config["linear_value_head_dim"]

    def by_keys(tensor: Floats) -> Floats:
        before, behind = tensor.shape[:axis], tensor.shape[axis + 1 :]
        heads = tensor.reshape(*before, values // keys, keys, size, *behind)
        return heads.swapaxes(axis, axis + 1).reshape(tensor.shape)

    return by_keys


def _qwen35_values_grouped(config: Config) -> Callable[[Floats], Floats]:
    """The same of rows of which the first are queries and keys."""
    first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    by_keys = _qwen35_grouped(config, 0)
    return lambda tensor: np.concatenate([tensor[:first], by_keys(tensor[first:])])


def _qwen35_of_qwen35(config: Config) -> Mapping[str, Part]:
    rows, numbers = _qwen35_grouped(config, 0), _qwen35_grouped(config, 0, 1)
    return {
        **_QWEN35_NORMS,
        **EXPERTS,
        "linear_attn.in_proj_qkv.weight": Part(_qwen35_values_grouped(config)),
        "linear_attn.conv1d.weight": Part(_qwen35_values_grouped(config)),
        "linear_attn.in_proj_z.weight": Part(rows),
        "linear_attn.in_proj_a.weight": Part(numbers),
        "linear_attn.in_proj_b.weight": Part(numbers),
        "linear_attn.out_proj.weight": Part(_qwen35_grouped(config, 1), columns=True),
        "linear_attn.A_log": Part(lambda tensor: numbers(STATES["A_log"].make(tensor))),
        "linear_attn.dt_bias": Part(numbers, STATES["dt_bias"].of),
    }


def _qwen35_of_qwen3next(config: Config) -> Mapping[str, Part]:
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


QWEN35 = (
    Family(
        "qwen35",
        ("qwen3_5_text", "qwen3_5"),
        lambda head: _qwen35_config(head, "qwen3_5_text", **_qwen35_three_axes(head)),
        _qwen35_of_qwen35,
    ),
    Family(
        "qwen35moe",
        ("qwen3_5_moe_text", "qwen3_5_moe"),
        lambda head: _qwen35_with_experts(head, "qwen3_5_moe_text", **_qwen35_three_axes(head)),
        _qwen35_of_qwen35,
    ),
    Family(
        "qwen3next",
        ("qwen3_next",),
        lambda head: _qwen35_with_experts(head, "qwen3_next"),
        _qwen35_of_qwen3next,
    ),
)


# All families. A new one is a file of this folder and a line here.


_ALL: tuple[Family, ...] = (*COHERE2, *GEMMA3N, *GLM4MOE, *GRANITE, *LFM2, *NEMOTRON_H, *OLMOE, *QWEN35)
FAMILIES = {family.gguf: family for family in _ALL}
"""By the name of the architecture in GGUF files."""
KINDS = {kind: family for family in _ALL for kind in family.kinds}
"""By transformers' names of what they may be."""
