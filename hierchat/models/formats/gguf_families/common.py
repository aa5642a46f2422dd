"""What the heads of all families say in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hierchat.models.architectures.names import EMBEDDING, HEAD
from hierchat.models.formats.gguf_head import Head
from hierchat.models.formats.gguf_rope import rotary_part, scaling_of

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
