"""A model of blocks out of tensors that carry transformers' names, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.block_model import BlockModel, heads_of
from hierchat.models.formats.quantised_blocks import Blocks

_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


Tensor = Callable[[str], NDArray[np.float32]]
"""A tensor by transformers' name, as float32."""


def assemble(
    config: dict[str, Any],
    names: Collection[str],
    tensor: Tensor,
    matrix: Callable[[str], Blocks],
    step: Callable[[int, int], None] = lambda n, of: None,
) -> BlockModel:
    """A model out of tensors that carry transformers' `names`; `matrix` gives those that become blocks."""
    layers = range(config["num_hidden_layers"])
    read = []
    for layer in layers:
        step(layer, len(layers))
        prefix = f"model.layers.{layer}"
        read.append({name: matrix(f"{prefix}.{there}.weight") for name, there in _NAMES.items()})

    def stacked(there: str) -> NDArray[np.float32]:
        return np.stack([tensor(f"model.layers.{layer}.{there}") for layer in layers])

    vectors = {
        "attention_norms": stacked("input_layernorm.weight"),
        "inner_norms": stacked("post_attention_layernorm.weight"),
        "last_norm": tensor("model.norm.weight"),
    }
    if "model.layers.0.self_attn.q_norm.weight" in names:
        vectors["query_norms"] = stacked("self_attn.q_norm.weight")
        vectors["key_norms"] = stacked("self_attn.k_norm.weight")
    if "model.layers.0.self_attn.q_proj.bias" in names:
        biases = [stacked(f"self_attn.{name}_proj.bias") for name in "qkv"]
        vectors["biases"] = np.concatenate(biases, axis=1).reshape(len(layers), -1, heads_of(config)[2])
    embedding = matrix("model.embed_tokens.weight")
    tied = config.get("tie_word_embeddings", "lm_head.weight" not in names)
    head = embedding if tied else matrix("lm_head.weight")
    return BlockModel(config, embedding, head, tuple(read), vectors)
