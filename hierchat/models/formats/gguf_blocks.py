"""A GGUF file as a model of blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.architecture import HEAD, LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, Name
from hierchat.models.architectures.families import GGUF_ARCHITECTURES, unknown
from hierchat.models.architectures.layers import FULL
from hierchat.models.architectures.rope import scaling, scaling_type
from hierchat.models.formats.assemble import Rows, assemble
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.block_types import UnknownBlockType, floats_of
from hierchat.models.formats.blocks import Blocks, from_file
from hierchat.models.formats.gguf_head import Tensor, read_head, shards
from hierchat.models.progress import BrokenFileError, Progress, Report, UnsupportedError

_UNTURNED = 1e20


def read_gguf(path: Path, config: dict[str, Any], report: Report) -> BlockModel:
    """`config` is the file's configuration in transformers' terms. Raises UnsupportedError, naming tensor and type."""
    head = read_head(path)
    tensors = {tensor.name: tensor for tensor in head.tensors}
    files = [np.memmap(file, np.uint8, "r") for file in shards(path)]
    said = head.architecture
    if said not in GGUF_ARCHITECTURES:
        raise UnsupportedError(f"{path.name}: the CPU engine does not compute {unknown(said)}.")
    architecture = GGUF_ARCHITECTURES[said]

    def rows(tensor: Tensor) -> NDArray[np.uint8]:
        raw = np.asarray(files[tensor.shard][tensor.begin : tensor.begin + tensor.size])
        return raw.reshape(math.prod(tensor.shape[1:]), -1)

    def matrix(name: Name, order: Rows | None = None) -> Blocks:
        tensor = _named(tensors, name.gguf, path)
        try:
            return from_file(tensor.type, rows(tensor), order)
        except UnknownBlockType as error:
            raise UnsupportedError(f"{path.name}: {name.gguf} has {error}.") from error

    def vector(name: str) -> NDArray[np.float32]:
        tensor = _named(tensors, name, path)
        floats = floats_of(tensor.type, rows(tensor))
        return floats[0] if len(tensor.shape) == 1 else floats

    message = f"{path.name}, once"
    tied = HEAD.gguf not in tensors
    if LONG_FACTORS in tensors:
        factors = {"long_factor": vector(LONG_FACTORS), "short_factor": vector(SHORT_FACTORS)}
        said_so = config.get("rope_parameters") or {}
        config["rope_parameters"] = said_so | {key: value.tolist() for key, value in factors.items()}
    proportional = scaling_type(scaling(config)) == "proportional"
    if (
        proportional and ROPE_FACTORS in tensors
    ):  # those that are not turned are divided by a number beyond all others
        share = float((vector(ROPE_FACTORS) < _UNTURNED).mean())
        config["rope_parameters"][FULL]["partial_rotary_factor"] = share
    model = assemble(
        architecture,
        config | {"tie_word_embeddings": tied},
        lambda name: vector(name.gguf),
        matrix,
        tied=tied,
        pairs_neighbours=architecture.gguf_pairs_neighbours,
        step=lambda n, of: report(Progress("converting", n, of, message)),
    )
    if ROPE_FACTORS not in tensors or proportional:
        return model
    return replace(model, vectors={**model.vectors, "rope_factors": vector(ROPE_FACTORS)})


def _named(tensors: dict[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in tensors:
        raise BrokenFileError(f"{path} lacks the tensor {name}.")
    return tensors[name]
