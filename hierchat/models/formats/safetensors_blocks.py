"""Safetensors of transformers as a model of blocks, rounded to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from hierchat.models.architectures.layers import matrices_of
from hierchat.models.architectures.names import EMBEDDING, HEAD, LAYER_EMBEDDING, Name
from hierchat.models.architectures.of_text import PREFIX
from hierchat.models.architectures.registry import ARCHITECTURES
from hierchat.models.architectures.sizes import experts_of
from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.assemble import assemble
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.block_types import mx_blocks, packed
from hierchat.models.formats.quantised_blocks import Blocks, from_file, from_floats, pack
from hierchat.models.formats.row_order import Rows
from hierchat.models.formats.tensors import fused, part_of, whole
from hierchat.models.progress import Progress, Report

_PIECE = 8192
"""Rows of a large matrix that are packed at a time."""


def pack_safetensors(folder: Path, config: dict[str, Any], bits: int, report: Report) -> BlockModel:
    """Every matrix in blocks of `bits`; the embedding and the head in 8, what chooses among experts as floats. Experts
    that are stored in MXFP4 stay as they are. `config`: of an architecture of the registry.

    Raises BrokenFileError, naming the tensor that is missing.
    """
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    stored = {name: file for file in files for name in file.keys()}  # noqa: SIM118
    # Beside pictures, tensors of texts have names of their own
    places = {_plain(name): _Stored(file, name) for name, file in stored.items()}

    message = f"{folder.name} to {bits}-bit blocks, once"
    architecture = ARCHITECTURES[config["model_type"]]
    experts, router = experts_of(config)[0], matrices_of(architecture, config, 0).get("router")

    def read(name: str) -> NDArray[np.float32]:
        if name not in places:
            raise BrokenFileError(f"{folder} lacks the tensor {name}.")
        return np.asarray(places[name].whole().float().numpy(), np.float32)

    def tensor(name: Name) -> NDArray[np.float32]:
        return whole(name, experts, read)

    def in_blocks(name: Name, order: Rows | None = None) -> Blocks:
        stem = name.transformers.removesuffix(".weight")
        if fused(name) and f"{stem}_blocks" in places:
            codes, scales = (places[f"{stem}_{kind}"].whole() for kind in ("blocks", "scales"))
            part = part_of(name)
            return from_file("MXFP4", mx_blocks(codes.numpy()[:, part], scales.numpy()[:, part]))
        if name == LAYER_EMBEDDING:
            return _packed_in_pieces(places, name.transformers, folder)
        weights = tensor(name) if order is None else tensor(name)[order]
        if router and f".{router.gguf}." in name.gguf:
            return from_floats(weights)
        return pack(weights, 8 if name in (EMBEDDING, HEAD) else bits)

    return assemble(
        architecture,
        config,
        tensor,
        in_blocks,
        tied=config.get("tie_word_embeddings", HEAD.transformers not in places),
        norm_offset=architecture.norm_offset,
        pairs_neighbours=architecture.pairs_neighbours,
        step=lambda n, of: report(Progress("converting", n, of, message)),
    )


class _Stored(NamedTuple):
    """A tensor in a file, by its name there."""

    file: Any
    name: str

    def whole(self) -> Any:
        return self.file.get_tensor(self.name)


def _plain(name: str) -> str:
    """A tensor's name in a model of texts alone."""
    return f"model.{name.removeprefix(PREFIX)}" if name.startswith(PREFIX) else name


def _packed_in_pieces(places: Mapping[str, _Stored], name: str, folder: Path) -> Blocks:
    """A matrix in blocks of 8 bits, of which a part at a time becomes floats: they may need more memory than there is.
    Raises BrokenFileError."""
    if name not in places:
        raise BrokenFileError(f"{folder} lacks the tensor {name}.")
    stored = places[name].file.get_slice(places[name].name)
    raw, kind = list[NDArray[np.uint8]](), ""
    for begin in range(0, stored.get_shape()[0], _PIECE):
        kind, bytes_ = packed(np.asarray(stored[begin : begin + _PIECE].float().numpy(), np.float32), 8)
        raw.append(bytes_)
    return from_file(kind, np.concatenate(raw))
