"""GGUF files whose matrices are in blocks of several types, which hold a module's weights to the bit."""

import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from tests.testing.architectures import finish

STEP = 2.0**-4
"""All weights of matrices are whole multiples of it, from -8 to 7: so four bits hold them, in whatever order."""
TYPES = ("Q4_K", "Q6_K", "Q8_0", "F32")
_NO_MATRIX = re.compile(r"norm|conv1d|shortconv\.conv|rope_|gate_inp|bias")


def snap(module: Any) -> Any:
    """Round the matrices of a module to what all TYPES hold."""
    for part in module.modules():
        if isinstance(part, torch.nn.Linear | torch.nn.Embedding):
            part.weight.copy_((part.weight / STEP).round().clamp(-8, 7) * STEP)
    return module


def in_mixed_blocks(whole: Path, path: Path) -> Path:
    """Write a file in float32 again, with its matrices in the types that their rows allow, in turn."""
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
    turns = cycle(TYPES)
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in ("F32", "F16"):  # gpt-oss' experts
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        floats = np.array(tensor.data)
        kind = next(turns) if floats.ndim == 2 and not _NO_MATRIX.search(tensor.name) else "F32"
        if kind != "F32" and floats.shape[-1] % 256:
            kind = "F32" if floats.shape[-1] % 32 else "Q8_0"
        if kind == "F32":
            writer.add_tensor(tensor.name, floats)
            continue
        block_type = gguf.GGMLQuantizationType[kind]
        raw = _blocks(kind, (floats / STEP).astype(np.int8))
        assert np.array_equal(gguf.dequantize(raw, block_type), floats), tensor.name
        writer.add_tensor(tensor.name, raw, raw_dtype=block_type)
    finish(writer)
    return path


def _blocks(kind: str, numbers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return rows of blocks, all of whose scales are STEP."""
    scale = np.array([STEP], np.float16).view(np.uint8)
    size = 32 if kind == "Q8_0" else 256
    blocks = numbers.reshape(len(numbers), -1, size)
    parts = list(_FIELDS[kind](blocks, scale))
    wide = [np.broadcast_to(part, (*blocks.shape[:2], part.shape[-1])) for part in parts]
    return np.ascontiguousarray(np.concatenate(wide, -1)).reshape(len(numbers), -1)


def _q8_0(blocks: NDArray[np.int8], scale: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    yield from (scale, blocks.view(np.uint8))


def _q4_k(blocks: NDArray[np.int8], scale: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    yield from (scale, scale)
    yield np.repeat(np.array([1, 8, 0x81], np.uint8), 4)  # eight scales of 1 and least numbers of 8
    low, high = np.moveaxis((blocks + 8).astype(np.uint8).reshape(*blocks.shape[:2], 4, 2, 32), 3, 0)
    yield (low | high << 4).reshape(*blocks.shape[:2], 128)


def _q6_k(blocks: NDArray[np.int8], scale: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    fours = (blocks + 32).astype(np.uint8).reshape(*blocks.shape[:2], 2, 4, 32)
    low = fours[..., :2, :] & 15 | (fours[..., 2:, :] & 15) << 4
    high = sum((fours[..., n, :] >> 4) << 2 * n for n in range(4))
    yield low.reshape(*blocks.shape[:2], 128)
    yield high.reshape(*blocks.shape[:2], 64)
    yield from (np.ones(16, np.uint8), scale)


_FIELDS = {"Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k}
