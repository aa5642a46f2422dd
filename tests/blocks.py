"""Random matrices in the block types of GGUF files."""

from __future__ import annotations

import numpy as np

from hierchat.models.formats.layouts import LAYOUTS

QUANTISED = tuple(name for name, layout in LAYOUTS.items() if layout.weights > 1)
WITH_MINIMUM = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def some_rows(name: str, rows: int, columns: int, seed: int = 0, largest: float = 0.1) -> np.ndarray:
    """Random bytes as rows of a file, uint8 [rows, bytes of a row], with scales up to `largest`."""
    random = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    if name not in QUANTISED:
        floats = random.standard_normal((rows, columns)).astype(np.float32)
        if name == "F16":
            return floats.astype(np.float16).view(np.uint8)
        bytes_ = floats.view(np.uint8)
        if name == "BF16":
            bytes_ = np.ascontiguousarray(bytes_.reshape(rows, columns, 4)[..., 2:]).reshape(rows, -1)
        return bytes_
    blocks = columns // layout.weights
    raw = random.integers(0, 256, (rows, blocks, layout.size), dtype=np.uint8)
    halves = random.uniform(0.01 * largest, largest, (rows, blocks, 2)).astype(np.float16).view(np.uint8)
    if name == "Q6_K":
        raw[..., 208:] = halves[..., :2]
    else:
        size = 4 if name in WITH_MINIMUM else 2
        raw[..., :size] = halves[..., :size]
    return raw.reshape(rows, -1)
