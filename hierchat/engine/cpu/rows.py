"""Compute on one row of activations at a time: norms, int16 and int8, rotary positions, SwiGLU."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.dot import BYTE_SUMS, GROUP, SUMS, product_address, takes_int8
from hierchat.engine.cpu.llvm import F32, I8, I16, I32, call_product, emits, fma, i64, kernel, store
from hierchat.engine.cpu.memory import BLOCKS, FLOATS, FORM, FUNCTION, INT8, INT16, ROW_BYTES, WEIGHTS
from hierchat.engine.cpu.softmax import soft_cap
from hierchat.engine.cpu.unpacking import ISAS, PLAIN
from hierchat.jit import INSTRUCTIONS, LANES
from hierchat.models.catalogue import Activations
from hierchat.models.formats.blocks import Blocks
from hierchat.models.formats.layouts import BLOCK

ROWS = ISAS[INSTRUCTIONS].most
"""Most rows of activations in one pass over the weights."""
PASS_ROWS = np.array([min(n for n in ISAS[INSTRUCTIONS].rows if n >= rows) for rows in range(ROWS + 1)])
"""By the rows that are left, those that a pass computes: some too many, where there is no kernel for so many."""


def record(matrix: Blocks, activations: Activations = "int16") -> list[int]:
    """Return a matrix's entry as the kernels read it (see memory); the model keeps the arrays alive."""
    form = INT8 if takes_int8(matrix.name, ISAS[INSTRUCTIONS], activations) else INT16
    assert matrix.lanes == LANES
    assert matrix.data.flags.c_contiguous
    return [
        product_address(matrix.name, activations=activations),
        matrix.data.ctypes.data,
        matrix.rows,
        matrix.columns // BLOCK,
        matrix.row_bytes,
        FLOATS if matrix.name in PLAIN else form,
    ]


@kernel
def pass_rows(first, rows):  # type: ignore[no-untyped-def]
    """Return how many rows the pass that begins at row `first` of `rows` computes."""
    return PASS_ROWS[min(ROWS, rows - first)]


@kernel
def product(matrix, part, first, last, place, rows, given, out, stride):  # type: ignore[no-untyped-def]
    """Set out[row, first:last] = rows first:last of a matrix, from row `part` on, times the activations `given` at
    `place`. matrix int64 [6]; part, first: multiples of LANES; out: address of float32 [rows, ...], `stride` bytes
    apart."""
    blocks = matrix[BLOCKS]
    groups = (blocks + 7) // 8
    for row in range(0, rows, ROWS):
        at = place + row
        scales = given.scales.ctypes.data + at * groups * 4
        sums = given.sums.ctypes.data + at * blocks * SUMS * 4
        if matrix[FORM] == INT8:
            x = given.bytes.ctypes.data + at * blocks * BLOCK
            scales = given.byte_scales.ctypes.data + at * blocks * 4
            sums = given.byte_sums.ctypes.data + at * blocks * BYTE_SUMS * 4
        elif matrix[FORM] == INT16:
            x = given.integers.ctypes.data + at * blocks * BLOCK * 2
        else:
            x = given.plain.ctypes.data + at * blocks * BLOCK * 4
        call_product(
            matrix[FUNCTION],
            pass_rows(row, rows),
            matrix[WEIGHTS] + (part + first) * matrix[ROW_BYTES],
            x,
            scales,
            sums,
            blocks,
            out + row * stride + first * 4,
            stride,
            last - first,
        )


ORDER = [four + place for four in range(0, BLOCK, 4) for place in (0, 2, 1, 3)]
"""Orders a block of activations as int16: the products read them so."""


def _halves(b: ir.IRBuilder, numbers: ir.Value) -> list[ir.Value]:
    return [
        llvm.call(b, "llvm.vector.reduce.add.v16i32", I32, llvm.slice_of(b, numbers, at, 16))
        for at in (0, 16)
    ]


@emits(types.void, types.int64, types.float32, types.int64, types.int64, types.int64)
def round_block(
    b: ir.IRBuilder, x: ir.Value, inverse: ir.Value, out: ir.Value, sums: ir.Value, stride: ir.Value
) -> None:
    """Emit: 32 float32 at `x` times `inverse`, rounded half to even, into int16 at `out`. At `sums`, `stride` bytes
    apart: their sum as float32, and the sums of both halves times -32 as int32."""
    floats = llvm.vector(F32, BLOCK)
    scaled = b.fmul(llvm.load(b, floats, x, 4), llvm.broadcast(b, inverse, BLOCK))
    numbers = b.fptosi(llvm.call(b, f"llvm.rint.v{BLOCK}f32", floats, scaled), llvm.vector(I32, BLOCK))
    halves = _halves(b, numbers)
    store(b, b.sitofp(b.add(*halves), F32), sums)
    for at, half in enumerate(halves, 1):
        store(b, b.mul(half, ir.Constant(I32, -32)), b.add(sums, b.mul(stride, i64(at))))
    short = b.trunc(numbers, llvm.vector(I16, BLOCK))
    order = ir.Constant(llvm.vector(I32, BLOCK), ORDER)
    store(b, b.shuffle_vector(short, ir.Constant(short.type, ir.Undefined), order), out, 2)


@emits(types.void, *[types.int64] * 5)
def round_to_bytes(
    b: ir.IRBuilder, x: ir.Value, out: ir.Value, scale: ir.Value, sums: ir.Value, stride: ir.Value
) -> None:
    """Emit: 32 float32 at `x` rounded half to even to 255 steps into int8 at `out`; sums as dot.BYTE_SUMS."""
    floats, whole = llvm.vector(F32, BLOCK), llvm.vector(I32, BLOCK)
    value = llvm.load(b, floats, x, 4)
    # The sizes of floats are in the order of their bits; what is no number has the largest
    bits = b.and_(b.bitcast(value, whole), ir.Constant(whole, [0x7FFFFFFF] * BLOCK))
    most = b.bitcast(llvm.call(b, f"llvm.vector.reduce.smax.v{BLOCK}i32", I32, bits), F32)
    nothing, top = ir.Constant(F32, 0.0), ir.Constant(F32, 127.0)
    broken = b.fmul(most, nothing)  # NaN for NaN and infinity
    large = b.fcmp_ordered(">", most, ir.Constant(F32, float(NOTHING)))
    good = b.and_(large, b.fcmp_ordered("==", broken, nothing))
    inverse = b.select(good, b.fdiv(top, most), nothing)
    step = b.select(good, b.fdiv(most, top), broken)
    scaled = b.fmul(b.select(good, value, llvm.zeros(floats)), llvm.broadcast(b, inverse, BLOCK))
    numbers = b.fptosi(llvm.call(b, f"llvm.rint.v{BLOCK}f32", floats, scaled), llvm.vector(I32, BLOCK))
    halves = _halves(b, numbers)
    pair = b.or_(b.and_(halves[0], ir.Constant(I32, 0xFFFF)), b.shl(halves[1], ir.Constant(I32, 16)))
    found = [b.fmul(b.sitofp(b.add(*halves), F32), step)]
    found += [b.mul(half, ir.Constant(I32, -32)) for half in halves]
    for at, number in enumerate((*found, pair)):
        store(b, number, b.add(sums, b.mul(stride, i64(at))))
    store(b, step, scale)
    store(b, b.trunc(numbers, llvm.vector(I8, BLOCK)), out, 1)


ROW_LANES = 16
"""Sums of a row run side by side in this many lanes, then are added in order."""
MOST = np.float32(32767)
ONE, ZERO = np.float32(1), np.float32(0)
NOTHING = np.float32(1e-30)
"""Smaller numbers have no scale that float32 could hold; they become zero."""


@kernel
def normalise(x, weight, epsilon, out):  # type: ignore[no-untyped-def]
    """Set out = x / sqrt(mean(x * x) + epsilon) * weight (RMSNorm); all float32 [n]."""
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
def quantise(x, forms, place, row, rows, given):  # type: ignore[no-untyped-def]
    """Quantise x float32 [n] to those of INT8 and INT16 in `forms`, as row `row` of `rows` at `place` of `given`."""
    quantise_part(x, 0, x.shape[0], forms, place, row, rows, given)


@kernel
def quantise_part(x, begin, n, forms, place, row, rows, given):  # type: ignore[no-untyped-def]
    """Quantise a part of a row of `n` numbers, as quantise does, from `begin` on, a multiple of `unit_of(forms)`."""
    if forms & INT8:
        quantise_bytes(x, begin, n, place, row, rows, given)
    if forms & INT16:
        quantise_shorts(x, begin, n, place, row, rows, given)


@kernel
def unit_of(forms):  # type: ignore[no-untyped-def]
    """Return how many numbers of a row are quantised together."""
    return GROUP if forms & INT16 else BLOCK


@kernel
def quantise_bytes(x, begin, n, place, row, rows, given):  # type: ignore[no-untyped-def]
    """Quantise x to int8 with a scale per BLOCK; rows of one pass are neighbours: given.bytes [blocks, rows, BLOCK],
    given.byte_scales [blocks, rows], given.byte_sums [blocks, BYTE_SUMS, rows], pass after pass."""
    blocks = n // BLOCK
    first = row // ROWS * ROWS
    these, at = pass_rows(first, rows), row % ROWS
    first += place
    source = x.ctypes.data - begin * 4
    out = given.bytes.ctypes.data + first * n + at * BLOCK
    scales = given.byte_scales.ctypes.data + (first * blocks + at) * 4
    sums = given.byte_sums.ctypes.data + (first * blocks * BYTE_SUMS + at) * 4
    for block in range(begin // BLOCK, (begin + x.shape[0]) // BLOCK):
        step = block * these
        round_to_bytes(
            source + block * BLOCK * 4,
            out + step * BLOCK,
            scales + step * 4,
            sums + step * BYTE_SUMS * 4,
            these * 4,
        )


@kernel
def quantise_shorts(x, begin, n, place, row, rows, given):  # type: ignore[no-untyped-def]
    """Quantise x to int16 with a scale per GROUP: given.integers [blocks, rows, BLOCK], given.scales [groups, rows],
    given.sums [blocks, SUMS, rows], pass after pass."""
    blocks, groups = n // BLOCK, -(-n // GROUP)
    first = row // ROWS * ROWS
    these, at = pass_rows(first, rows), row % ROWS
    first += place
    out = given.integers[first * n :]
    scales = given.scales[first * groups :]
    sums = given.sums[first * blocks * SUMS :]
    lanes, broken = np.zeros(ROW_LANES, np.float32), np.zeros(ROW_LANES, np.float32)
    for group in range(begin // GROUP, -(-(begin + x.shape[0]) // GROUP)):
        part = x[group * GROUP - begin : min((group + 1) * GROUP - begin, x.shape[0])]
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
        scales[group * these + at] = nothing if void else most / MOST
        inverse = ZERO if void else MOST / most
        for block in range(group * 8, group * 8 + part.shape[0] // BLOCK):
            place, total = (block * these + at) * BLOCK, block * SUMS * these + at
            if void:
                out[place : place + BLOCK] = 0
                for kind in range(SUMS):
                    sums[total + kind * these] = 0
            else:
                round_block(
                    x[block * BLOCK - begin :].ctypes.data,
                    inverse,
                    out[place:].ctypes.data,
                    sums[total:].ctypes.data,
                    these * 4,
                )


@kernel
def rotate(head, cosines, sines, offset):  # type: ignore[no-untyped-def]
    """Rotate one head by its position (RoPE) in place, pairs `offset` apart; cosines and sines float32 [pairs]."""
    pairs = cosines.shape[0]
    low, high = head[:pairs], head[offset : offset + pairs]
    for j in range(pairs):
        one, other = low[j], high[j]
        low[j] = one * cosines[j] - other * sines[j]
        high[j] = other * cosines[j] + one * sines[j]


@kernel
def added(x, more, scale):  # type: ignore[no-untyped-def]
    """Add more * scale to x in place; with a scale of 1 exactly."""
    for k in range(x.shape[0]):
        x[k] += more[k] * scale


@kernel
def multiplied(x, factor):  # type: ignore[no-untyped-def]
    for k in range(x.shape[0]):
        x[k] *= factor


@kernel
def capped(x, cap):  # type: ignore[no-untyped-def]
    """Set x = cap * tanh(x / cap), float32 of any length; each number's bits depend on itself alone."""
    whole = x.shape[0] // ROW_LANES * ROW_LANES
    soft_cap(x.ctypes.data, whole, np.float32(cap))
    if whole < x.shape[0]:
        rest = np.zeros(ROW_LANES, np.float32)
        for k in range(x.shape[0] - whole):
            rest[k] = x[whole + k]
        soft_cap(rest.ctypes.data, ROW_LANES, np.float32(cap))
        for k in range(x.shape[0] - whole):
            x[whole + k] = rest[k]
