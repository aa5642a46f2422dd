"""Rows of weights times rows of activations: the inner loop of everything, written in LLVM.

Quantised weights come in blocks of 32 with a scale, and a minimum where their type has one; activations as int16 with
a scale per 256 of a row (rows.quantise). Products are added as integers inside a block, then as floats block after
block, in an order that does not depend on how many rows are computed together. Weights of 16 or 32 bits are plain
floats and take the activations as float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.llvm import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    LANES,
    broadcast,
    call,
    fused,
    i64,
    load,
    loop,
    vector,
)
from hierchat.jit import INSTRUCTIONS
from hierchat.models.formats.quantised_blocks import (
    BLOCK,
    BYTES_PER_BLOCK,
    FOUR_BITS,
    MINIMUM,
    NARROW,
    QUANTISED,
    SCALES_PER_BLOCK,
    BlockKind,
)

GROUP = 256
"""Activations to a scale."""
ROWS = 8
"""Most rows of activations in one pass over the weights."""
HEIGHTS = (1, 2, 3, 4, 6, 8)
"""Rows that a pass may compute; for 5 and 7 it computes one too many."""

AHEAD = 1024
"""Bytes of quantised weights that are fetched before they are needed."""

_X = 2 * LANES
"""Products that one instruction adds to `LANES` sums."""


_NAMES = ("weights", "scales", "x", "levels", "sums", "blocks", "out", "stride", "count")


@intrinsic
def multiply(
    typingctx: Any,
    place: Any,
    height: Any,
    weights: Any,
    scales: Any,
    x: Any,
    levels: Any,
    sums: Any,
    blocks: Any,
    out: Any,
    stride: Any,
    count: Any,
) -> Any:
    """out[row, n] for `height` rows of activations and `count` rows of weights; all int64, most of them addresses.

    place: multiplier(kind); height: one of HEIGHTS; weights, scales: of the first row of weights, the next ones follow;
    x: int16 [height, 32 blocks], float32 for plain kinds; levels: float32 [height, groups], the scales of x; sums:
    float32 [blocks, 8], a block of activations added up, per row; blocks: of a row; out: float32, `stride` bytes from
    one row of activations to the next.
    """

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        place, *rest = arguments
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(rest))
        b.call(b.inttoptr(place, kind.as_pointer()), rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), codegen


@cache
def multiplier(kind: BlockKind) -> int:
    """The address of the code of `multiply` for one kind. It is compiled for itself, and only for kinds that a model
    has: within the forward it would be compiled anew with everything that calls it, for all kinds."""

    @intrinsic
    def of_height(
        typingctx: Any,
        height: Any,
        weights: Any,
        scales: Any,
        x: Any,
        levels: Any,
        sums: Any,
        blocks: Any,
        out: Any,
        stride: Any,
        count: Any,
    ) -> Any:
        def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
            height, *rest = arguments
            end = b.append_basic_block("multiplied")
            switch = b.switch(height, end)
            for rows in HEIGHTS:
                block = b.append_basic_block(f"rows_{rows}")
                switch.add_case(i64(rows), block)
                b.position_at_end(block)
                b.call(_function(b.module, kind, rows), rest)
                b.branch(end)
            b.position_at_end(end)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), codegen

    def product(height, weights, scales, x, levels, sums, blocks, out, stride, count):  # type: ignore[no-untyped-def]
        of_height(height, weights, scales, x, levels, sums, blocks, out, stride, count)

    product.__qualname__ = product.__name__ = (
        f"product_{kind.name.lower()}"  # what its code is called on disk
    )
    return kernel.address(product, types.void(*[types.int64] * 10))


def _function(module: ir.Module, kind: BlockKind, rows: int) -> ir.Function:
    """The loop over `count` rows of weights, defined once in a module."""
    name = f"hierchat_{kind.name.lower()}_{rows}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * len(_NAMES)), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    given = dict(zip(_NAMES, function.args, strict=True))
    blocks, count = given["blocks"], given["count"]
    row_bytes = b.mul(blocks, i64(BYTES_PER_BLOCK[kind]))
    row_scales = b.mul(blocks, i64(_scale_bytes(kind)))

    def keep(n: ir.Value, results: list[ir.Value]) -> None:
        for row, result in enumerate(results):
            address = b.add(b.add(given["out"], b.mul(n, i64(4))), b.mul(given["stride"], i64(row)))
            b.store(result, b.inttoptr(address, F32.as_pointer()), align=4)

    def one_pass(first: ir.Value, tall: int) -> None:
        place = dict(given)
        place["weights"] = b.add(given["weights"], b.mul(first, row_bytes))
        place["scales"] = b.add(given["scales"], b.mul(first, row_scales))
        if kind in QUANTISED:
            keep(first, _quantised(b, kind, rows, place))
            return
        for n, results in enumerate(_plain(b, kind, rows, tall, place)):
            keep(b.add(first, i64(n)), results)

    def some_rows(tile: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        one_pass(b.mul(tile, i64(tall)), tall)
        return []

    def one_row(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        one_pass(n, 1)
        return []

    tall = 1 if kind in QUANTISED else _together(rows)
    rest = i64(0)
    if tall > 1:
        tiles = b.udiv(count, i64(tall))
        rest = b.mul(tiles, i64(tall))
        with b.if_then(b.icmp_signed(">", tiles, i64(0))):
            loop(b, i64(0), tiles, [], some_rows)
    with b.if_then(b.icmp_signed("<", rest, count)):
        loop(b, rest, count, [], one_row)
    b.ret_void()
    return function


def _together(rows: int) -> int:
    """Rows of float weights in one pass over `rows` rows of activations: so many that their sums fill the registers.
    For one or two, memory is the bound, and one stream of weights is the fastest."""
    registers = 24 if INSTRUCTIONS == "avx512" else 12
    return 1 if rows <= 2 else max(1, min(4, registers // rows))


def _quantised(b: ir.IRBuilder, kind: BlockKind, rows: int, at: dict[str, ir.Value]) -> list[ir.Value]:
    """One row of weights times `rows` rows of int16: groups of eight blocks, each group scaled once."""
    floats, eight = vector(F32, LANES), vector(F32, 8)
    blocks = at["blocks"]
    groups = b.udiv(b.add(blocks, i64(7)), i64(8))

    def one_block(block: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        *parts, low = values
        address = b.add(at["weights"], b.mul(block, i64(BYTES_PER_BLOCK[kind])))
        _fetch(b, b.add(address, i64(AHEAD)))
        weights = _nibbles(b, address) if kind in FOUR_BITS else _bytes(b, address)
        one, other = _scales(b, kind, b.add(at["scales"], b.mul(block, i64(_scale_bytes(kind)))))
        scales = _spread(b, one, other if kind is BlockKind.SPLIT else None)
        grown = []
        for row, part in enumerate(parts):
            place = b.mul(b.add(b.mul(blocks, i64(row)), block), i64(2 * BLOCK))
            grown.append(_add_products(b, weights, scales, b.add(at["x"], place), part))
        if kind in MINIMUM:
            low = fused(
                b, broadcast(b, other, 8), load(b, eight, b.add(at["sums"], b.mul(block, i64(32))), 4), low
            )
        return [*grown, low]

    def one_group(group: ir.Value, values: list[ir.Value]) -> list[ir.Value]:
        *totals, low = values
        first = b.mul(group, i64(8))
        ahead = b.add(first, i64(8))
        last = b.select(b.icmp_signed("<", ahead, blocks), ahead, blocks)
        *parts, low = loop(b, first, last, [*[llvm.zeros(floats)] * rows, low], one_block)
        scaled = []
        for row, part in enumerate(parts):
            place = b.mul(b.add(b.mul(groups, i64(row)), group), i64(4))
            level = broadcast(b, load(b, F32, b.add(at["levels"], place), 4), LANES)
            scaled.append(fused(b, part, level, totals[row]))
        return [*scaled, low]

    zero = [*[llvm.zeros(floats)] * rows, llvm.zeros(eight)]
    *totals, low = loop(b, i64(0), groups, zero, one_group)
    results = [llvm.sum_of(b, total) for total in totals]
    if kind in MINIMUM:
        lows = [b.extract_element(low, ir.Constant(I32, row)) for row in range(rows)]
        results = [b.fadd(result, least) for result, least in zip(results, lows, strict=True)]
    return results


def _plain(
    b: ir.IRBuilder, kind: BlockKind, rows: int, tall: int, at: dict[str, ir.Value]
) -> list[list[ir.Value]]:
    """`tall` rows of float weights times `rows` rows of float32."""
    floats = vector(F32, LANES)
    blocks = at["blocks"]
    size = BYTES_PER_BLOCK[kind] // BLOCK

    def one_block(block: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
        for place in range(0, BLOCK, LANES):
            index = b.add(b.mul(block, i64(BLOCK)), i64(place))
            weights = []
            for n in range(tall):
                further = b.add(b.mul(blocks, i64(BLOCK * n)), index)
                address = b.add(at["weights"], b.mul(further, i64(size)))
                weights.append(_floats(b, kind, address))
                _fetch(b, b.add(address, b.mul(blocks, i64(BYTES_PER_BLOCK[kind] * tall))))
            grown = []
            for row in range(rows):
                further = b.add(b.mul(blocks, i64(BLOCK * row)), index)
                x = load(b, floats, b.add(at["x"], b.mul(further, i64(4))), 4)
                mine = parts[row * tall : (row + 1) * tall]
                grown += [fused(b, weight, x, part) for weight, part in zip(weights, mine, strict=True)]
            parts = grown
        return parts

    totals = loop(b, i64(0), blocks, [llvm.zeros(floats)] * (rows * tall), one_block)
    return [[llvm.sum_of(b, total) for total in totals[n::tall]] for n in range(tall)]


def _fetch(b: ir.IRBuilder, address: ir.Value) -> None:
    """Brings what lies at an address, if anything, into the nearest cache: the hardware's own looking ahead ends with
    every page, and stops where the next weights are awaited."""
    pointer = b.inttoptr(address, I8.as_pointer())
    call(b, "llvm.prefetch.p0", ir.VoidType(), pointer, *(ir.Constant(I32, flag) for flag in (0, 3, 1)))


def _scale_bytes(kind: BlockKind) -> int:
    """Bytes of a block's scales."""
    return SCALES_PER_BLOCK.get(kind, 0) * (2 if kind in NARROW else 4)


def _scales(b: ir.IRBuilder, kind: BlockKind, address: ir.Value) -> tuple[ir.Value, ir.Value]:
    """A block's scale and its minimum or second scale, as float32; the same twice where it has only one."""
    if kind is BlockKind.BYTES:
        half = b.zext(load(b, I16, address, 2), I32)
        pair = b.bitcast(half, vector(I16, 2))
    elif kind in NARROW:
        pair = load(b, vector(I16, 2), address, 2)
    else:
        return load(b, F32, address, 4), load(b, F32, b.add(address, i64(4)), 4)
    wide = _from_half(b, pair)
    one = b.extract_element(wide, ir.Constant(I32, 0))
    return one, one if kind is BlockKind.BYTES else b.extract_element(wide, ir.Constant(I32, 1))


def _spread(b: ir.IRBuilder, one: ir.Value, other: ir.Value | None) -> list[ir.Value]:
    """Scales over the lanes: one for all products of a block, or one for each half of them."""
    if other is None:
        return [broadcast(b, one, LANES)]
    pair = [broadcast(b, one, 8), broadcast(b, other, 8)]
    return [llvm.joined(b, *pair)] if LANES == 16 else pair


def _add_products(
    b: ir.IRBuilder, weights: list[ir.Value], scales: list[ir.Value], x: ir.Value, part: ir.Value
) -> ir.Value:
    """part + scale * (a block of weights times a block of int16), lane by lane."""
    sums = [
        _pairs(b, weight, load(b, vector(I16, _X), b.add(x, i64(2 * _X * number)), 2))
        for number, weight in enumerate(weights)
    ]
    if len(scales) < len(sums):
        sums = [b.add(*sums)]
    for one, scale in zip(sums, scales, strict=True):
        part = fused(b, b.sitofp(one, part.type), scale, part)
    return part


def _pairs(b: ir.IRBuilder, one: ir.Value, other: ir.Value) -> ir.Value:
    """Products of two vectors of int16, neighbours added: half as many int32."""
    if INSTRUCTIONS == "avx512":
        return call(b, "llvm.x86.avx512.pmaddw.d.512", vector(I32, 16), one, other)
    if INSTRUCTIONS == "avx2":
        return call(b, "llvm.x86.avx2.pmadd.wd", vector(I32, 8), one, other)
    wide = b.mul(b.sext(one, vector(I32, 16)), b.sext(other, vector(I32, 16)))
    even, odd = (ir.Constant(vector(I32, 8), list(range(first, 16, 2))) for first in (0, 1))
    none = ir.Constant(wide.type, ir.Undefined)
    return b.add(b.shuffle_vector(wide, none, even), b.shuffle_vector(wide, none, odd))


def _nibbles(b: ir.IRBuilder, address: ir.Value) -> list[ir.Value]:
    """32 weights of 4 bits as int16."""
    wide = b.zext(load(b, vector(I8, 16), address, 1), vector(I16, 16))
    low = b.and_(wide, ir.Constant(wide.type, [15] * 16))
    high = b.lshr(wide, ir.Constant(wide.type, [4] * 16))
    return [llvm.joined(b, low, high)] if LANES == 16 else [low, high]


def _bytes(b: ir.IRBuilder, address: ir.Value) -> list[ir.Value]:
    """32 weights of 8 bits as int16."""
    return [
        b.sext(load(b, vector(I8, _X), b.add(address, i64(place)), 1), vector(I16, _X))
        for place in range(0, BLOCK, _X)
    ]


def _floats(b: ir.IRBuilder, kind: BlockKind, address: ir.Value) -> ir.Value:
    """`LANES` float weights as float32."""
    if kind is BlockKind.SINGLE:
        return load(b, vector(F32, LANES), address, 4)
    raw = load(b, vector(I16, LANES), address, 2)
    if kind is BlockKind.HALF:
        return _from_half(b, raw)
    wide = b.zext(raw, vector(I32, LANES))
    return b.bitcast(b.shl(wide, ir.Constant(wide.type, [16] * LANES)), vector(F32, LANES))


def _from_half(b: ir.IRBuilder, raw: ir.Value) -> ir.Value:
    """float16, as a vector of int16, to float32."""
    lanes = raw.type.count
    if INSTRUCTIONS != "generic":
        return b.fpext(b.bitcast(raw, vector(F16, lanes)), vector(F32, lanes))
    # By its bits: moved to float32's place, the exponents differ by 112. Not for what is no number.
    wide = b.zext(raw, vector(I32, lanes))

    def all_of(value: int) -> ir.Constant:
        return ir.Constant(wide.type, [value] * lanes)

    size = b.bitcast(b.shl(b.and_(wide, all_of(0x7FFF)), all_of(13)), vector(F32, lanes))
    size = b.fmul(size, ir.Constant(size.type, [2.0**112] * lanes))
    sign = b.shl(b.and_(wide, all_of(0x8000)), all_of(16))
    return b.bitcast(b.or_(b.bitcast(size, wide.type), sign), size.type)
