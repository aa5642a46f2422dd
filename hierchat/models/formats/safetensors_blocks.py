"""Safetensors of transformers as a model of blocks, rounded to 8 or 4 bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from hierchat.models.errors import BrokenFileError
from hierchat.models.formats.assemble import assemble
from hierchat.models.formats.block_model import BlockModel
from hierchat.models.formats.block_types import pack
from hierchat.models.formats.quantised_blocks import Blocks
from hierchat.models.progress import Progress, Report
from hierchat.models.runnable import require_supported


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
