"""A tile of a matrix times all rows of a block."""

from __future__ import annotations

from hierchat.engine.cpu.dot import ROWS, multiply
from hierchat.engine.cpu.jit import inlined, kernel
from hierchat.engine.cpu.memory import BLOCKS, KIND, MINIMUMS, SCALES, WEIGHTS
from hierchat.models.blocks import BLOCK, BYTES_PER_BLOCK, Kind

HALF, SPLIT, NIBBLES, SINGLE = int(Kind.HALF), int(Kind.SPLIT), int(Kind.NIBBLES), int(Kind.SINGLE)
assert [BYTES_PER_BLOCK[kind] for kind in sorted(Kind)] == [16, 32, 32, 32, 64, 64, 128]


@inlined
def block_bytes(kind):  # type: ignore[no-untyped-def]
    if kind == NIBBLES:
        return 16
    if kind < HALF:
        return 32
    return 128 if kind == SINGLE else 64


@kernel
def product(matrix, first, last, rows, work, out, stride):  # type: ignore[no-untyped-def]
    """out[row, first:last] = rows first:last of a matrix times the activations in `work`.

    matrix int64 [6], see memory; out: address of float32 [rows padded to ROWS, ...], `stride` bytes from row to row.
    """
    kind, blocks = matrix[KIND], matrix[BLOCKS]
    groups = (blocks + 7) // 8
    scales = first * blocks * (8 if kind == SPLIT else 4)
    for row in range(0, rows, ROWS):
        height = min(ROWS, rows - row)
        if height == 5 or height == 7:
            height += 1
        if kind >= HALF:
            x = work.plain.ctypes.data + row * blocks * BLOCK * 4
        else:
            x = work.integers.ctypes.data + row * blocks * BLOCK * 2
        multiply(
            kind,
            height,
            matrix[WEIGHTS] + first * blocks * block_bytes(kind),
            matrix[SCALES] + scales,
            matrix[MINIMUMS] + scales,
            x,
            work.levels.ctypes.data + row * groups * 4,
            work.sums.ctypes.data + row * blocks * 4,
            blocks,
            out + row * stride + first * 4,
            stride,
            last - first,
        )
