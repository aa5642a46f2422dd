"""Safetensors of transformers as a model of blocks, rounded to 8 or 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from hierchat.models.architectures.names import EMBEDDING, HEAD, Name
from hierchat.models.architectures.registry import ARCHITECTURES
from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.assemble import assemble
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.quantised_blocks import Blocks, pack
from hierchat.models.formats.row_order import Rows
from hierchat.models.progress import Progress, Report


def pack_safetensors(folder: Path, config: dict[str, Any], bits: int, report: Report) -> BlockModel:
    """Every matrix in blocks of `bits`; the embedding and the head in 8. `config`: of an architecture of the registry.

    Raises BrokenFileError, naming the tensor that is missing.
    """
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    places = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def tensor(name: Name) -> NDArray[np.float32]:
        if name.transformers not in places:
            raise BrokenFileError(f"{folder} lacks the tensor {name.transformers}.")
        return np.asarray(places[name.transformers].get_tensor(name.transformers).float().numpy(), np.float32)

    def packed(name: Name, order: Rows | None = None) -> Blocks:
        weights = tensor(name) if order is None else tensor(name)[order]
        return pack(weights, 8 if name in (EMBEDDING, HEAD) else bits)

    message = f"{folder.name} to {bits}-bit blocks, once"
    architecture = ARCHITECTURES[config["model_type"]]
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
