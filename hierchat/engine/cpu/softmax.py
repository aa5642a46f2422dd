"""The two inner loops of attention, in LLVM: scores of one query, and its share of one chunk of values."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.llvm import F32, I32, LANES, broadcast, fused, i64, load, loop, vector
from hierchat.engine.cpu.memory import CHUNK

SIDE_BY_SIDE = 8
"""Registers that hold sums at a time."""
NONE = -3e38
_FLOATS = vector(F32, LANES)


def _store(b: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=4)


def _all(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES)


@intrinsic
def score(typingctx: Any, query: Any, keys: Any, size: Any, out: Any) -> Any:
    """out[t] = query . keys[:, t] over the dimensions in order. Addresses of float32 [size], [size, CHUNK], [CHUNK]."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        query, keys, size, out = arguments
        registers = min(SIDE_BY_SIDE, CHUNK // LANES)
        for first in range(0, CHUNK, registers * LANES):

            def one(j: ir.Value, sums: list[ir.Value], first: int = first) -> list[ir.Value]:
                x = broadcast(b, load(b, F32, b.add(query, b.mul(j, i64(4))), 4), LANES)
                row = b.add(keys, b.add(b.mul(j, i64(4 * CHUNK)), i64(4 * first)))
                return [
                    fused(b, x, load(b, _FLOATS, b.add(row, i64(4 * LANES * number)), 4), total)
                    for number, total in enumerate(sums)
                ]

            for number, total in enumerate(loop(b, i64(0), size, [llvm.zeros(_FLOATS)] * registers, one)):
                _store(b, total, b.add(out, i64(4 * (first + number * LANES))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def weigh(typingctx: Any, scores: Any, count: Any, values: Any, order: Any, size: Any, out: Any) -> Any:
    """A chunk's share of the result, with its highest score and the sum of its weights e**(score - highest).

    Addresses of float32 scores [CHUNK], the first `count` valid, overwritten; values [slots, size]; int32 order
    [count], the slot of each score; out [size + 2]. `size` is a multiple of 16. Even and odd positions are summed
    apart.
    """

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        scores, count, values, order, size, out = arguments
        valid, found = _masked(b, scores, count)
        highest = found[0]
        for other in found[1:]:
            highest = b.select(b.fcmp_ordered(">", other, highest), other, highest)
        top = _highest(b, highest)
        total = llvm.zeros(_FLOATS)
        for number, (mask, value) in enumerate(zip(valid, found, strict=True)):
            weight = b.select(mask, exponential(b, b.fsub(value, broadcast(b, top, LANES))), _all(0.0))
            _store(b, weight, b.add(scores, i64(4 * LANES * number)))
            total = b.fadd(total, weight)
        end = b.add(out, b.mul(size, i64(4)))
        _store(b, top, end)
        _store(b, llvm.sum_of(b, total), b.add(end, i64(4)))
        _add_values(b, scores, count, values, order, size, out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


def _masked(b: ir.IRBuilder, scores: ir.Value, count: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
    """Which lanes are valid, and the scores, the others far below all."""
    last = broadcast(b, b.trunc(count, I32), LANES)
    valid, found = [], []
    for first in range(0, CHUNK, LANES):
        places = ir.Constant(last.type, list(range(first, first + LANES)))
        valid.append(b.icmp_signed("<", places, last))
        value = load(b, _FLOATS, b.add(scores, i64(4 * first)), 4)
        found.append(b.select(valid[-1], value, _all(NONE)))
    return valid, found


def _highest(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    while value.type.count > 1:
        half = value.type.count // 2
        low, high = llvm.slice_of(b, value, 0, half), llvm.slice_of(b, value, half, half)
        value = b.select(b.fcmp_ordered(">", high, low), high, low)
    return b.extract_element(value, ir.Constant(I32, 0))


def _add_values(
    b: ir.IRBuilder,
    weights: ir.Value,
    count: ir.Value,
    values: ir.Value,
    order: ir.Value,
    size: ir.Value,
    out: ir.Value,
) -> None:
    """Half a SIDE_BY_SIDE of registers of a value at a time, over all positions two by two."""
    for registers in (SIDE_BY_SIDE // 2, 1):  # as many as fit, then one by one
        step = registers * LANES
        if registers > 1:
            first, last = i64(0), b.sdiv(size, i64(step))
        else:
            first = b.mul(b.sdiv(size, i64(SIDE_BY_SIDE // 2 * LANES)), i64(SIDE_BY_SIDE // 2))
            last = b.sdiv(size, i64(LANES))
        with b.if_then(b.icmp_signed("<", first, last)):

            def part(index: ir.Value, _: list[ir.Value], registers: int = registers) -> list[ir.Value]:
                offset = b.mul(index, i64(4 * registers * LANES))
                zero = [llvm.zeros(_FLOATS)] * registers

                def value_at(t: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                    weight = broadcast(b, load(b, F32, b.add(weights, b.mul(t, i64(4))), 4), LANES)
                    slot = b.sext(load(b, I32, b.add(order, b.mul(t, i64(4))), 4), llvm.I64)
                    row = b.add(values, b.add(b.mul(slot, b.mul(size, i64(4))), offset))
                    return [
                        fused(b, weight, load(b, _FLOATS, b.add(row, i64(4 * LANES * number)), 4), total)
                        for number, total in enumerate(sums)
                    ]

                def pair(half: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                    t = b.mul(half, i64(2))
                    even = value_at(t, sums[:registers])
                    return [*even, *value_at(b.add(t, i64(1)), sums[registers:])]

                # an odd last position is paired with nothing: its partner's weight is zero
                halves = b.sdiv(b.add(count, i64(1)), i64(2))
                sums = loop(b, i64(0), halves, zero + zero, pair)
                for number in range(registers):
                    both = b.fadd(sums[number], sums[registers + number])
                    _store(b, both, b.add(b.add(out, offset), i64(4 * LANES * number)))
                return []

            loop(b, first, last, [], part)


# e**x = 2**n * polynomial on [-ln 2 / 2, ln 2 / 2], ln 2 split in two (Cody and Waite); relative error 2e-7
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_LOWEST, _HIGHEST = -87.0, 87.0


def exponential(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e**x for a vector of float32, between e**-87 and e**87; what is no number stays none."""
    x = b.select(b.fcmp_ordered("<", x, _all(_LOWEST)), _all(_LOWEST), x)
    x = b.select(b.fcmp_ordered(">", x, _all(_HIGHEST)), _all(_HIGHEST), x)
    n = llvm.call(b, f"llvm.rint.v{LANES}f32", _FLOATS, b.fmul(x, _all(_LOG2_E)))
    r = fused(b, n, _all(-_LN_2_LOW), fused(b, n, _all(-_LN_2_HIGH), x))
    p = _all(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        p = fused(b, p, r, _all(factor))
    p = fused(b, p, b.fmul(r, r), b.fadd(r, _all(1.0)))
    whole = vector(I32, LANES)
    bits = b.shl(
        b.add(b.fptosi(n, whole), ir.Constant(whole, [127] * LANES)), ir.Constant(whole, [23] * LANES)
    )
    return b.fmul(p, b.bitcast(bits, _FLOATS))


@intrinsic
def gate(typingctx: Any, gates: Any, ups: Any, size: Any, out: Any) -> Any:
    """out = gate / (1 + e**-gate) * up (SwiGLU); addresses of float32 [size], a multiple of 16."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        gates, ups, size, out = arguments

        def part(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = b.mul(index, i64(4 * LANES))
            value = load(b, _FLOATS, b.add(gates, place), 4)
            below = b.fadd(exponential(b, b.fsub(_all(0.0), value)), _all(1.0))
            result = b.fmul(b.fdiv(value, below), load(b, _FLOATS, b.add(ups, place), 4))
            _store(b, result, b.add(out, place))
            return []

        loop(b, i64(0), b.sdiv(size, i64(LANES)), [], part)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
