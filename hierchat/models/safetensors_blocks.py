"""Safetensors of transformers as a model of blocks, rounded to 8 or 4 bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from hierchat.models.block_model import BlockModel, heads_of, require_supported
from hierchat.models.block_types import pack
from hierchat.models.blocks import Blocks
from hierchat.models.errors import BrokenFileError
from hierchat.models.progress import Progress, Report

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


def pack_safetensors(folder: Path, bits: int, report: Report) -> BlockModel:
    """Every matrix in blocks of `bits`; the embedding and the head in 8. Raises UnsupportedError, BrokenFileError."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    require_supported(config, 0)
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    places = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def tensor(name: str) -> NDArray[np.float32]:
        if name not in places:
            raise BrokenFileError(f"{folder} lacks the tensor {name}.")
        return np.asarray(places[name].get_tensor(name).float().numpy(), np.float32)

    def packed(name: str) -> Blocks:
        return pack(tensor(name), bits if ".layers." in name else 8)

    message = f"{folder.name} to {bits}-bit blocks, once"
    return assemble(
        config, set(places), tensor, packed, lambda n, of: report(Progress("converting", n, of, message))
    )


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
