"""What a family of GGUF files says: its configuration in transformers' terms, and out of which tensors of the file
those of transformers' module are made. llama.cpp's converter is what is undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import EMBEDDING, HEAD, LONG_FACTORS
from hierchat.models.formats.gguf_head import Head

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


def rotary_part(head: Head) -> float | None:
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
    found |= {"partial_rotary_factor": rotary_part(head) or 1.0, **(scaling_of(head) or {})}
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
