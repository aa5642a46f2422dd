"""Safetensors of transformers as a model of blocks, rounded to 8 or 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from hierchat.models.architectures.names import EMBEDDING, HEAD, Name
from hierchat.models.architectures.registry import ARCHITECTURES
from hierchat.models.architectures.sizes import experts_of
from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.assemble import assemble
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.block_types import mx_blocks
from hierchat.models.formats.quantised_blocks import Blocks, from_file, from_floats, pack
from hierchat.models.formats.row_order import Rows
from hierchat.models.formats.tensors import fused, part_of, whole
from hierchat.models.progress import Progress, Report


def pack_safetensors(folder: Path, config: dict[str, Any], bits: int, report: Report) -> BlockModel:
    """Every matrix in blocks of `bits`; the embedding and the head in 8, what chooses among experts as floats. Experts
    that are stored in MXFP4 stay as they are. `config`: of an architecture of the registry.

    Raises BrokenFileError, naming the tensor that is missing.
    """
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    places = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    message = f"{folder.name} to {bits}-bit blocks, once"
    architecture = ARCHITECTURES[config["model_type"]]
    experts, router = experts_of(config)[0], architecture.matrices.get("router")

    def read(name: str) -> NDArray[np.float32]:
        if name not in places:
            raise BrokenFileError(f"{folder} lacks the tensor {name}.")
        return np.asarray(places[name].get_tensor(name).float().numpy(), np.float32)

    def tensor(name: Name) -> NDArray[np.float32]:
        return whole(name, experts, read)

    def packed(name: Name, order: Rows | None = None) -> Blocks:
        stem = name.transformers.removesuffix(".weight")
        if fused(name) and f"{stem}_blocks" in places:
            codes, scales = (
                places[f"{stem}_{kind}"].get_tensor(f"{stem}_{kind}") for kind in ("blocks", "scales")
            )
            part = part_of(name)
            return from_file("MXFP4", mx_blocks(codes.numpy()[:, part], scales.numpy()[:, part]))
        weights = tensor(name) if order is None else tensor(name)[order]
        if router and f".{router.gguf}." in name.gguf:
            return from_floats(weights)
        return pack(weights, 8 if name in (EMBEDDING, HEAD) else bits)

    return assemble(
        architecture,
        config,
        tensor,
        packed,
        tied=config.get("tie_word_embeddings", HEAD.transformers not in places),
        norm_offset=architecture.norm_offset,
        pairs_neighbours=architecture.pairs_neighbours,
        step=lambda n, of: report(Progress("converting", n, of, message)),
    )
