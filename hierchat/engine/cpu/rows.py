"""What is done to one row of activations at a time: norms, int16, rotary positions, SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.engine.cpu.dot import GROUP, SUMS, product_address
from hierchat.engine.cpu.llvm import (
    F32,
    I16,
    I32,
    broadcast,
    call,
    call_product,
    fma,
    i64,
    kernel,
    load,
    slice_of,
    vector,
)
from hierchat.engine.cpu.memory import BLOCKS, FUNCTION, PLAIN, ROW_BYTES, WEIGHTS
from hierchat.engine.cpu.softmax import soft_cap
from hierchat.engine.cpu.unpacking import ISAS
from hierchat.engine.cpu.unpacking import PLAIN as PLAIN_TYPES
from hierchat.jit import INSTRUCTIONS, LANES
from hierchat.models.formats.blocks import Blocks
from hierchat.models.formats.layouts import BLOCK

# A tile of a matrix times all rows of a block.


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


# A block of activations as int16, in the order in which the products read them.


ORDER = [four + place for four in range(0, BLOCK, 4) for place in (0, 2, 1, 3)]


@intrinsic
def round_block(typingctx: Any, x: Any, inverse: Any, out: Any, sums: Any, stride: Any) -> Any:
    """Address of 32 float32 times `inverse` (float32), rounded to the nearest, ties to even, into int16 at `out`.

    At `sums`: all of them added up, as float32; `stride` bytes further on the first half times -32, as int32, and
    again so far the second.
    """

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        x, inverse, out, sums, stride = arguments
        floats = vector(F32, BLOCK)
        scaled = b.fmul(load(b, floats, x, 4), broadcast(b, inverse, BLOCK))
        numbers = b.fptosi(call(b, f"llvm.rint.v{BLOCK}f32", floats, scaled), vector(I32, BLOCK))
        halves = [
            call(b, "llvm.vector.reduce.add.v16i32", I32, slice_of(b, numbers, at, 16)) for at in (0, 16)
        ]
        places = [sums, b.add(sums, stride), b.add(sums, b.mul(stride, i64(2)))]
        b.store(b.sitofp(b.add(*halves), F32), b.inttoptr(places[0], F32.as_pointer()), align=4)
        for half, place in zip(halves, places[1:], strict=True):
            b.store(b.mul(half, ir.Constant(I32, -32)), b.inttoptr(place, I32.as_pointer()), align=4)
        short = b.trunc(numbers, vector(I16, BLOCK))
        order = ir.Constant(vector(I32, BLOCK), ORDER)
        ordered = b.shuffle_vector(short, ir.Constant(short.type, ir.Undefined), order)
        b.store(ordered, b.inttoptr(out, ordered.type.as_pointer()), align=2)
        return context.get_dummy_value()

    kinds = (types.int64, types.float32, types.int64, types.int64, types.int64)
    return types.void(*kinds), codegen


ROW_LANES = 16
"""Sums of a row run side by side in this many lanes, then are added in order."""
MOST = np.float32(32767)
ONE, ZERO = np.float32(1), np.float32(0)
NOTHING = np.float32(1e-30)
"""Smaller numbers have no scale that float32 could hold; they become zero."""


@kernel
def normalise(x, weight, epsilon, out):  # type: ignore[no-untyped-def]
    """out = x / sqrt(mean(x * x) + epsilon) * weight (RMSNorm); all float32 [n]."""
    n = x.shape[0]
    whole = n // ROW_LANES * ROW_LANES
    lanes = np.zeros(ROW_LANES, np.float32)
    for k in range(0, whole, ROW_LANES):
        for j in range(ROW_LANES):
            lanes[j] = fma(x[k + j], x[k + j], lanes[j])
    for j in range(n - whole):
        lanes[j] = fma(x[whole + j], x[whole + j], lanes[j])
    total = ZERO
    for j in range(ROW_LANES):
        total += lanes[j]
    factor = ONE / np.sqrt(total / np.float32(n) + np.float32(epsilon))
    for k in range(n):
        out[k] = x[k] * factor * weight[k]


@kernel
def quantise(x, place, row, rows, work):  # type: ignore[no-untyped-def]
    """x float32 [n] as int16 with a scale per GROUP, as row `row` of `rows` that begin at `place`; what is no number
    stays none.

    The rows that one pass computes lie side by side: work.integers [blocks, height, BLOCK], work.levels [groups,
    height], work.sums [blocks, SUMS, height]; pass after pass.
    """
    n = x.shape[0]
    blocks, groups = n // BLOCK, -(-n // GROUP)
    first = row // ROWS * ROWS
    height, at = height_at(first, rows), row % ROWS
    first += place
    out = work.integers[first * n :]
    levels = work.levels[first * groups :]
    sums = work.sums[first * blocks * SUMS :]
    lanes, broken = np.zeros(ROW_LANES, np.float32), np.zeros(ROW_LANES, np.float32)
    for group in range(groups):
        part = x[group * GROUP : min((group + 1) * GROUP, n)]
        lanes[:] = ZERO
        broken[:] = ZERO
        for k in range(0, part.shape[0], ROW_LANES):
            for j in range(ROW_LANES):
                value = abs(part[k + j])
                lanes[j] = value if value > lanes[j] else lanes[j]
                broken[j] += value * ZERO  # NaN for NaN and infinity
        most, nothing = ZERO, ZERO
        for j in range(ROW_LANES):
            most = lanes[j] if lanes[j] > most else most
            nothing += broken[j]
        void = most < NOTHING or nothing != ZERO
        levels[group * height + at] = nothing if void else most / MOST
        inverse = ZERO if void else MOST / most
        for block in range(group * 8, group * 8 + part.shape[0] // BLOCK):
            place, total = (block * height + at) * BLOCK, block * SUMS * height + at
            if void:
                out[place : place + BLOCK] = 0
                for sum in range(SUMS):
                    sums[total + sum * height] = 0
            else:
                round_block(
                    x[block * BLOCK :].ctypes.data,
                    inverse,
                    out[place:].ctypes.data,
                    sums[total:].ctypes.data,
                    height * 4,
                )


@kernel
def rotate(head, cosines, sines, apart):  # type: ignore[no-untyped-def]
    """Rotary position of one head in place, each of its first numbers against the one `apart`; cosines and sines
    float32 [pairs]."""
    pairs = cosines.shape[0]
    low, high = head[:pairs], head[apart : apart + pairs]
    for j in range(pairs):
        one, other = low[j], high[j]
        low[j] = one * cosines[j] - other * sines[j]
        high[j] = other * cosines[j] + one * sines[j]


@kernel
def added(x, more, scale):  # type: ignore[no-untyped-def]
    """x += more * scale; by 1 exact."""
    for k in range(x.shape[0]):
        x[k] += more[k] * scale


@kernel
def multiplied(x, factor):  # type: ignore[no-untyped-def]
    """x *= factor"""
    for k in range(x.shape[0]):
        x[k] *= factor


@kernel
def capped(x, cap):  # type: ignore[no-untyped-def]
    """x = cap * tanh(x / cap), float32 of any length; each number's bits depend on itself alone."""
    whole = x.shape[0] // ROW_LANES * ROW_LANES
    soft_cap(x.ctypes.data, whole, np.float32(cap))
    if whole < x.shape[0]:
        rest = np.zeros(ROW_LANES, np.float32)
        for k in range(x.shape[0] - whole):
            rest[k] = x[whole + k]
        soft_cap(rest.ctypes.data, ROW_LANES, np.float32(cap))
        for k in range(x.shape[0] - whole):
            x[whole + k] = rest[k]
