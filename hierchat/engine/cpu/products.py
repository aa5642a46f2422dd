"""A tile of a matrix times all rows of a block."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.dot import ROWS, multiply
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.memory import BLOCKS, KIND, PRODUCT, SCALES, WEIGHTS
from hierchat.models.formats.quantised_blocks import (
    BLOCK,
    BYTES_PER_BLOCK,
    NARROW,
    SCALES_PER_BLOCK,
    BlockKind,
)

WEIGHT_BYTES = np.array([BYTES_PER_BLOCK[kind] for kind in sorted(BlockKind)])
SCALE_BYTES = np.array(
    [SCALES_PER_BLOCK.get(kind, 0) * (2 if kind in NARROW else 4) for kind in sorted(BlockKind)]
)
PLAIN = int(BlockKind.HALF)
"""The first kind that takes activations as floats."""


@kernel
def product(matrix, first, last, rows, work, out, stride):  # type: ignore[no-untyped-def]
    """out[row, first:last] = rows first:last of a matrix times the activations in `work`.

    matrix int64 [6], see memory; out: address of float32 [rows padded to ROWS, ...], `stride` bytes from row to row.
    """
    kind, blocks = matrix[KIND], matrix[BLOCKS]
    groups = (blocks + 7) // 8
    weights = matrix[WEIGHTS] + first * blocks * WEIGHT_BYTES[kind]
    scales = matrix[SCALES] + first * blocks * SCALE_BYTES[kind]
    for row in range(0, rows, ROWS):
        height = min(ROWS, rows - row)
        if height == 5 or height == 7:
            height += 1
        if kind >= PLAIN:
            x = work.plain.ctypes.data + row * blocks * BLOCK * 4
        else:
            x = work.integers.ctypes.data + row * blocks * BLOCK * 2
        multiply(
            matrix[PRODUCT],
            height,
            weights,
            scales,
            x,
            work.levels.ctypes.data + row * groups * 4,
            work.sums.ctypes.data + row * blocks * 4,
            blocks,
            out + row * stride + first * 4,
            stride,
            last - first,
        )
