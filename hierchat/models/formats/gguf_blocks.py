"""A GGUF file as a model of blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.errors import BrokenFileError, UnsupportedError
from hierchat.models.formats.assemble import assemble
from hierchat.models.formats.block_model import BlockModel, heads_of
from hierchat.models.formats.block_types import UnknownBlockType, unpack
from hierchat.models.formats.quantised_blocks import Blocks
from hierchat.models.progress import Progress, Report

_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' names and the file's."""
_INTERLEAVED = ("llama",)
"""Architectures whose files pair neighbours for rotary positions, where the engine pairs halves of a head."""


def read_gguf(path: Path, config: dict[str, Any], report: Report) -> BlockModel:
    """`config` is the file's configuration in transformers' terms. Raises UnsupportedError, naming tensor and type."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    architecture = reader.fields["general.architecture"].contents()
    heads, kv_heads, size = heads_of(config)
    order = (
        {"attn_q": _turned(heads, size), "attn_k": _turned(kv_heads, size)}
        if architecture in _INTERLEAVED
        else {}
    )

    def matrix(name: str) -> Blocks:
        there = _there(name)
        tensor = _named(tensors, there, path)
        try:
            data = np.asarray(tensor.data).view(np.uint8)
            blocks = unpack(tensor.tensor_type.name, data.reshape(int(tensor.shape[1]), -1))
        except UnknownBlockType as error:
            raise UnsupportedError(f"{path.name}: {there} has {error}.") from error
        rows = order.get(there.split(".")[-2])
        return blocks if rows is None else blocks.take(rows)

    def vector(there: str) -> NDArray[np.float32]:
        tensor = _named(tensors, there, path)
        return unpack(
            tensor.tensor_type.name, np.asarray(tensor.data).view(np.uint8).reshape(1, -1)
        ).floats()[0]

    message = f"{path.name}, once"
    model = assemble(
        config | {"tie_word_embeddings": "output.weight" not in tensors},
        {name for name in _all_names(config["num_hidden_layers"]) if _there(name) in tensors},
        lambda name: vector(_there(name)),
        matrix,
        lambda n, of: report(Progress("converting", n, of, message)),
    )
    if "rope_freqs.weight" not in tensors:
        return model
    return replace(model, vectors={**model.vectors, "rope_factors": vector("rope_freqs.weight")})


def _turned(rows: int, size: int) -> NDArray[np.int64]:
    """Rows of `rows` heads of `size`, neighbours put half a head apart."""
    return np.arange(rows * size).reshape(rows, size // 2, 2).swapaxes(1, 2).reshape(-1)


def _there(name: str) -> str:
    """The file's name for transformers'."""
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, inner = name.split(".", 3)
    inner, kind = inner.rsplit(".", 1)
    return f"blk.{layer}.{_INNER[inner]}.{kind}"


def _all_names(layers: int) -> list[str]:
    """Every name that a model of so many layers may have."""
    parts = [f"{name}.{kind}" for name in _INNER for kind in ("weight", "bias")]
    return [*_OUTER, *(f"model.layers.{layer}.{part}" for layer in range(layers) for part in parts)]


def _named(tensors: dict[str, Any], name: str, path: Path) -> Any:
    if name not in tensors:
        raise BrokenFileError(f"{path} lacks the tensor {name}.")
    return tensors[name]
