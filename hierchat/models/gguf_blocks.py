"""A GGUF file as a model of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hierchat.models.block_model import BlockModel, heads_of
from hierchat.models.block_types import UnknownBlockType, unpack
from hierchat.models.blocks import Blocks, Kind
from hierchat.models.errors import BrokenFileError, UnsupportedError
from hierchat.models.progress import Progress, Report

_NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_INTERLEAVED = ("llama",)
"""Architectures whose files pair neighbours for rotary positions, where the engine pairs halves of a head."""


def read_gguf(path: Path, config: dict[str, Any], report: Report) -> BlockModel:
    """`config` is the file's configuration in transformers' terms. Raises UnsupportedError, naming tensor and type."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    architecture = reader.fields["general.architecture"].contents()
    heads, kv_heads, size = heads_of(config)
    layers = range(config["num_hidden_layers"])

    def matrix(name: str) -> Blocks:
        tensor = _named(tensors, name, path)
        try:
            data = np.asarray(tensor.data)
            return unpack(tensor.tensor_type.name, data.view(np.uint8).reshape(int(tensor.shape[1]), -1))
        except UnknownBlockType as error:
            raise UnsupportedError(f"{path.name}: {name} has {error}.") from error

    def vector(name: str) -> np.ndarray[Any, Any]:
        tensor = _named(tensors, name, path)
        blocks = unpack(tensor.tensor_type.name, np.asarray(tensor.data).view(np.uint8).reshape(1, -1))
        return blocks.floats()[0] if blocks.kind is not Kind.SINGLE else np.array(tensor.data, np.float32)

    def turned(rows: int) -> np.ndarray[Any, Any]:
        pairs = np.arange(rows * size).reshape(rows, size // 2, 2)
        return pairs.swapaxes(1, 2).reshape(-1)

    order = {"q": turned(heads), "k": turned(kv_heads)} if architecture in _INTERLEAVED else {}
    read = []
    for layer in layers:
        report(Progress("converting", layer, len(layers), f"{path.name}, once"))
        found = {name: matrix(f"blk.{layer}.{there}.weight") for name, there in _NAMES.items()}
        read.append(found | {name: found[name].take(rows) for name, rows in order.items()})

    def stacked(there: str) -> np.ndarray[Any, Any]:
        return np.stack([vector(f"blk.{layer}.{there}") for layer in layers])

    vectors = {
        "attention_norms": stacked("attn_norm.weight"),
        "inner_norms": stacked("ffn_norm.weight"),
        "last_norm": vector("output_norm.weight"),
    }
    if "blk.0.attn_q_norm.weight" in tensors:
        vectors["query_norms"] = stacked("attn_q_norm.weight")
        vectors["key_norms"] = stacked("attn_k_norm.weight")
    if "blk.0.attn_q.bias" in tensors:
        biases = [stacked(f"attn_{name}.bias") for name in "qkv"]
        vectors["biases"] = np.concatenate(biases, axis=1).reshape(len(layers), -1, size)
    if "rope_freqs.weight" in tensors:
        vectors["rope_factors"] = vector("rope_freqs.weight")
    embedding = matrix("token_embd.weight")
    head = matrix("output.weight") if "output.weight" in tensors else embedding
    return BlockModel(config, embedding, head, tuple(read), vectors)


def _named(tensors: dict[str, Any], name: str, path: Path) -> Any:
    if name not in tensors:
        raise BrokenFileError(f"{path} lacks the tensor {name}.")
    return tensors[name]
