"""A GGUF file as a model of blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.names import HEAD, MATRICES, ROPE_FACTORS, Name
from hierchat.models.architectures.registry import GGUF_ARCHITECTURES, unknown
from hierchat.models.architectures.sizes import heads_of
from hierchat.models.errors import BrokenFileError, UnsupportedError
from hierchat.models.formats.assemble import assemble
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.block_types import UnknownBlockType, floats_of
from hierchat.models.formats.gguf_head import Tensor, read_head
from hierchat.models.formats.quantised_blocks import Blocks, from_file
from hierchat.models.progress import Progress, Report


def read_gguf(path: Path, config: dict[str, Any], report: Report) -> BlockModel:
    """`config` is the file's configuration in transformers' terms. Raises UnsupportedError, naming tensor and type."""
    head = read_head(path)
    tensors = {tensor.name: tensor for tensor in head.tensors}
    file = np.memmap(path, np.uint8, "r")
    said = head.architecture
    if said not in GGUF_ARCHITECTURES:
        raise UnsupportedError(f"{path.name}: the CPU engine does not compute {unknown(said)}.")
    architecture = GGUF_ARCHITECTURES[said]
    heads, kv_heads, size = heads_of(config)
    order = (
        {MATRICES["q"].gguf: _turned(heads, size), MATRICES["k"].gguf: _turned(kv_heads, size)}
        if architecture.gguf_pairs_neighbours
        else {}
    )

    def rows(tensor: Tensor) -> NDArray[np.uint8]:
        raw = np.asarray(file[tensor.begin : tensor.begin + tensor.size])
        return raw.reshape(math.prod(tensor.shape[1:]), -1)

    def matrix(name: Name) -> Blocks:
        tensor = _named(tensors, name.gguf, path)
        try:
            return from_file(tensor.type, rows(tensor), order.get(name.gguf.split(".")[-2]))
        except UnknownBlockType as error:
            raise UnsupportedError(f"{path.name}: {name.gguf} has {error}.") from error

    def vector(name: str) -> NDArray[np.float32]:
        tensor = _named(tensors, name, path)
        floats = floats_of(tensor.type, rows(tensor))
        return floats[0] if len(tensor.shape) == 1 else floats

    message = f"{path.name}, once"
    tied = HEAD.gguf not in tensors
    model = assemble(
        architecture,
        config | {"tie_word_embeddings": tied},
        lambda name: vector(name.gguf),
        matrix,
        tied=tied,
        step=lambda n, of: report(Progress("converting", n, of, message)),
    )
    if ROPE_FACTORS not in tensors:
        return model
    return replace(model, vectors={**model.vectors, "rope_factors": vector(ROPE_FACTORS)})


def _turned(rows: int, size: int) -> NDArray[np.int64]:
    """Rows of `rows` heads of `size`, neighbours put half a head apart."""
    return np.arange(rows * size).reshape(rows, size // 2, 2).swapaxes(1, 2).reshape(-1)


def _named(tensors: dict[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in tensors:
        raise BrokenFileError(f"{path} lacks the tensor {name}.")
    return tensors[name]
