"""Tensors of safetensors by their names in models.architectures, whatever pieces they are stored in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hierchat.models.architectures.names import FUSED_EXPERTS, Name

Floats = NDArray[np.float32]


def whole(name: Name, experts: int, read: Callable[[str], Floats]) -> Floats:
    """A tensor by its name in transformers. Matrices of `experts` experts stand one behind the other, float32
    [experts * rows, columns]. `read` gives what is stored under a name."""
    said = name.transformers
    if "{}" in said:
        return np.concatenate([read(said.format(expert)) for expert in range(experts)])
    stem, kind = said.rsplit(".", 1)
    if stem.endswith((".sinks", ".layer_scalar")) or kind == "scale":
        return read(stem)
    if ".experts." in said and ".mlp." not in said:
        floats = read(stem)
        return floats.reshape(-1, floats.shape[2])
    if not fused(name):
        return read(said)
    floats = read(f"{stem}_bias") if kind == "bias" else read(stem).swapaxes(1, 2)
    floats = np.ascontiguousarray(floats[:, part_of(name)])
    return floats if kind == "bias" else floats.reshape(-1, floats.shape[2])


def fused(name: Name) -> bool:
    """Whether it is stored for all experts in one tensor."""
    return ".mlp.experts." in name.transformers and "{}" not in name.transformers


def part_of(name: Name) -> slice:
    """The rows of each expert that are this tensor's: gate and up stand in turn."""
    if FUSED_EXPERTS["down"].gguf in name.gguf:
        return slice(None)
    return slice(0 if FUSED_EXPERTS["gate"].gguf in name.gguf else 1, None, 2)
