"""A tile of a matrix times all rows of a block."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.code import product_address
from hierchat.engine.cpu.dot import SUMS
from hierchat.engine.cpu.isa import ISAS
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.llvm import call_product
from hierchat.engine.cpu.memory import BLOCKS, FUNCTION, PLAIN, ROW_BYTES, WEIGHTS
from hierchat.engine.cpu.unpacking import PLAIN as PLAIN_TYPES
from hierchat.jit import INSTRUCTIONS, LANES
from hierchat.models.formats.layouts import BLOCK
from hierchat.models.formats.quantised_blocks import Blocks

HEIGHTS = ISAS[INSTRUCTIONS].heights
ROWS = HEIGHTS[-1]
"""Most rows of activations in one pass over the weights."""
HEIGHT_OF = np.array([min(height for height in HEIGHTS if height >= rows) for rows in range(ROWS + 1)])
"""By the rows that are left, those that a pass computes: some too many, where there is no kernel for so many."""


def record(matrix: Blocks) -> list[int]:
    """A matrix as the kernels find it; the model keeps the arrays alive."""
    assert matrix.lanes == LANES
    assert matrix.data.flags.c_contiguous
    return [
        product_address(matrix.name),
        matrix.data.ctypes.data,
        matrix.rows,
        matrix.columns // BLOCK,
        matrix.row_bytes,
        matrix.name in PLAIN_TYPES,
    ]


@kernel
def height_at(first, rows):  # type: ignore[no-untyped-def]
    """Rows that the pass beginning at row `first` of `rows` computes."""
    return HEIGHT_OF[min(ROWS, rows - first)]


@kernel
def product(matrix, part, first, last, place, rows, work, out, stride):  # type: ignore[no-untyped-def]
    """out[row, first:last] = rows first:last of a matrix, counted from row `part` on, times the activations in `work`
    that begin at `place`.

    matrix int64 [6], see memory; part, first: multiples of LANES; out: address of float32 [rows padded to ROWS, ...],
    `stride` bytes from row to row.
    """
    blocks = matrix[BLOCKS]
    groups = (blocks + 7) // 8
    for row in range(0, rows, ROWS):
        if matrix[PLAIN]:
            x = work.plain.ctypes.data + (place + row) * blocks * BLOCK * 4
        else:
            x = work.integers.ctypes.data + (place + row) * blocks * BLOCK * 2
        call_product(
            matrix[FUNCTION],
            height_at(row, rows),
            matrix[WEIGHTS] + (part + first) * matrix[ROW_BYTES],
            x,
            work.levels.ctypes.data + (place + row) * groups * 4,
            work.sums.ctypes.data + (place + row) * blocks * SUMS * 4,
            blocks,
            out + row * stride + first * 4,
            stride,
            last - first,
        )
