"""Compute the inner loops of attention, in LLVM: scores over a chunk of keys, and weighted sums of values.
int16 keys and values become floats in registers, once for several queries. No query's bits depend on the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.llvm import F32, I16, I32, broadcast, fused, i64, load, loop, store, vector
from hierchat.engine.cpu.memory import CHUNK
from hierchat.jit import LANES

QUERIES = 4 if LANES == 16 else 6
"""Most queries in one pass over a chunk: all registers hold sums, but those of the numbers that they share."""
NONE = -3e38
_FLOATS = vector(F32, LANES)


def registers_of(queries: int) -> int:
    return 4 if LANES == 16 or queries <= 2 else 2


def _all(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES)


def _numbers(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return b.sitofp(b.sext(load(b, vector(I16, LANES), address, 2), vector(I32, LANES)), _FLOATS)


def _at(b: ir.IRBuilder, address: ir.Value, index: ir.Value, size: int) -> ir.Value:
    return b.add(address, b.mul(index, i64(size)))


def counted(arguments: int) -> Callable[[Callable[..., None]], Any]:
    """Turn a function that emits code for one number of queries into a kernel for 1 to QUERIES, its first argument."""

    def decorate(body: Callable[..., None]) -> Any:
        @llvm.emits(types.void, *[types.int64] * arguments)
        def chosen(b: ir.IRBuilder, queries: ir.Value, *given: ir.Value) -> None:
            llvm.by_count(b, body.__name__, queries, range(1, QUERIES + 1), given, body)

        return chosen

    return decorate


@counted(7)
def score(b: ir.IRBuilder, queries: int, *given: ir.Value) -> None:
    """Emit out[q, t] = query[q] . keys[:, t] * scales[t], over the dimensions in order, for `queries` queries.
    `given`: addresses of float32 query [queries, size], int16 keys [size, CHUNK], float32 scales [CHUNK]; size;
    address of out [queries, CHUNK]; its `stride` in bytes."""
    query, keys, scales, size, out, stride = given
    registers = registers_of(queries)
    for first in range(0, CHUNK, registers * LANES):

        def one(j: ir.Value, sums: list[ir.Value], first: int = first) -> list[ir.Value]:
            row = b.add(_at(b, keys, j, 2 * CHUNK), i64(2 * first))
            pieces = [_numbers(b, b.add(row, i64(2 * LANES * number))) for number in range(registers)]
            grown = []
            for q in range(queries):
                place = b.add(b.mul(size, i64(q)), j)
                x = broadcast(b, load(b, F32, _at(b, query, place, 4), 4), LANES)
                own = sums[q * registers : (q + 1) * registers]
                grown += [fused(b, x, piece, total) for piece, total in zip(pieces, own, strict=True)]
            return grown

        sums = loop(b, i64(0), size, [llvm.zeros(_FLOATS)] * (queries * registers), one)
        for number, total in enumerate(sums):
            q, place = number // registers, first + number % registers * LANES
            scale = load(b, _FLOATS, b.add(scales, i64(4 * place)), 4)
            there = b.add(b.add(out, b.mul(stride, i64(q))), i64(4 * place))
            store(b, b.fmul(total, scale), there)


@counted(11)
def weigh(b: ir.IRBuilder, queries: int, *given: ir.Value) -> None:
    """Emit a chunk's part of the attention of some queries: the values weighed by e**(score - highest), behind them the
    highest score and the sum of the weights.

    `given`: address of float32 scores [queries, CHUNK], rows `stride` bytes apart, valid from `first` to before
    `count`, overwritten; addresses of float32 gains [CHUNK], the scale of each position's value, of int16 values
    [slots, size], size a multiple of 16, and of int32 order [count], the slot of each position; size; address of out
    float32 [queries, size + 2], rows `out_stride` bytes apart."""
    scores, stride, first, count, gains, values, order, size, out, out_stride = given
    rows = [b.add(scores, b.mul(stride, i64(q))) for q in range(queries)]
    outs = [b.add(out, b.mul(out_stride, i64(q))) for q in range(queries)]
    for row, there in zip(rows, outs, strict=True):
        llvm.apart(b, "softmax", (row, first, count, gains, _at(b, there, size, 4)), _softmax)
    # As many registers of a value as the sums have, then one by one
    most = registers_of(queries)
    for registers in (most, 1):
        whole = b.sdiv(size, i64(most * LANES))
        begin = i64(0) if registers > 1 else b.mul(whole, i64(most))
        end = whole if registers > 1 else b.sdiv(size, i64(LANES))
        with b.if_then(b.icmp_signed("<", begin, end)):

            def part(index: ir.Value, _: list[ir.Value], registers: int = registers) -> list[ir.Value]:
                column = b.mul(index, i64(registers * LANES))

                def position(t: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                    slot = b.sext(load(b, I32, _at(b, order, t, 4), 4), llvm.I64)
                    value = _at(b, values, b.add(b.mul(slot, size), column), 2)
                    pieces = [_numbers(b, b.add(value, i64(2 * LANES * n))) for n in range(registers)]
                    grown = []
                    for q, row in enumerate(rows):
                        weight = broadcast(b, load(b, F32, _at(b, row, t, 4), 4), LANES)
                        own = sums[q * registers : (q + 1) * registers]
                        grown += [
                            fused(b, weight, piece, total) for piece, total in zip(pieces, own, strict=True)
                        ]
                    return grown

                sums = loop(b, first, count, [llvm.zeros(_FLOATS)] * (queries * registers), position)
                for number, total in enumerate(sums):
                    place = b.add(column, i64(number % registers * LANES))
                    store(b, total, _at(b, outs[number // registers], place, 4))
                return []

            loop(b, begin, end, [], part)


def _softmax(
    b: ir.IRBuilder, scores: ir.Value, first: ir.Value, count: ir.Value, gains: ir.Value, end: ir.Value
) -> None:
    """Emit: scores become weights times gains, 0 outside `first` to `count`; at `end` the highest score and the sum."""
    begin, last = (broadcast(b, b.trunc(value, I32), LANES) for value in (first, count))
    valid, found = [], []
    for at in range(0, CHUNK, LANES):
        places = ir.Constant(last.type, list(range(at, at + LANES)))
        valid.append(b.and_(b.icmp_signed(">=", places, begin), b.icmp_signed("<", places, last)))
        found.append(b.select(valid[-1], load(b, _FLOATS, b.add(scores, i64(4 * at)), 4), _all(NONE)))
    highest = found[0]
    for other in found[1:]:
        highest = b.select(b.fcmp_ordered(">", other, highest), other, highest)
    top = llvm.folded(b, highest, lambda low, high: b.select(b.fcmp_ordered(">", high, low), high, low))
    total = llvm.zeros(_FLOATS)
    for number, (mask, value) in enumerate(zip(valid, found, strict=True)):
        place = i64(4 * LANES * number)
        weight = b.select(mask, exponential(b, b.fsub(value, broadcast(b, top, LANES))), _all(0.0))
        total = b.fadd(total, weight)
        gain = load(b, _FLOATS, b.add(gains, place), 4)
        store(b, b.select(mask, b.fmul(weight, gain), _all(0.0)), b.add(scores, place))
    store(b, top, end)
    store(b, llvm.folded(b, total, b.fadd), b.add(end, i64(4)))


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
    """Emit e**x for a vector of float32, x clamped to between -87 and 87; NaN stays NaN."""
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


# sqrt(8 / pi), and that times 0.044715
_TANH, _TANH_CUBE = 1.5957691216057308, 0.07135481282053854
# gpt-oss' gate: the logistic function is steeper, gates and ups go to 7 at most, and ups are one more
_STEEP, _LIMIT = 1.702, 7.0


def _at_most(b: ir.IRBuilder, x: ir.Value, limit: float) -> ir.Value:
    return b.select(b.fcmp_ordered(">", x, _all(limit)), _all(limit), x)


def _gate(
    steep: Callable[[ir.IRBuilder, ir.Value], ir.Value], clamped: bool = False, alone: bool = False
) -> Any:
    """Return a kernel: out = gate / (1 + e**-steep(gate)) * up; 1 is the first gate if `alone`. float32 [size]."""

    @llvm.emits(types.void, *[types.int64] * 4)
    def gate(b: ir.IRBuilder, gates: ir.Value, ups: ir.Value, size: ir.Value, out: ir.Value) -> None:
        def part(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = b.mul(index, i64(4 * LANES))
            value = load(b, _FLOATS, b.add(gates, place), 4)
            up = load(b, _FLOATS, b.add(ups, place), 4)
            if clamped:
                value, up = _at_most(b, value, _LIMIT), _at_most(b, up, _LIMIT)
                up = b.select(b.fcmp_ordered("<", up, _all(-_LIMIT)), _all(-_LIMIT), up)
                up = b.fadd(up, _all(1.0))
            below = b.fadd(exponential(b, b.fsub(_all(0.0), steep(b, value))), _all(1.0))
            result = b.fmul(b.fdiv(_all(1.0) if alone else value, below), up)
            store(b, result, b.add(out, place))
            return []

        loop(b, i64(0), b.sdiv(size, i64(LANES)), [], part)

    return gate


silu_gate = _gate(lambda b, x: x)
sigmoid_gate = _gate(lambda b, x: x, alone=True)
"""The logistic function of the gate, as the gated attention of Qwen3.5 has it."""
gelu_gate = _gate(lambda b, x: b.fmul(x, fused(b, b.fmul(x, x), _all(_TANH_CUBE), _all(_TANH))))
"""GeGLU, as Gemma has it; GELU by tanh: (1 + tanh(u)) / 2 = 1 / (1 + e**-2u)."""
clamped_gate = _gate(lambda b, x: b.fmul(x, _all(_STEEP)), clamped=True)
"""SwiGLU as gpt-oss has it."""


@llvm.emits(types.void, *[types.int64] * 4)
def relu_squared(b: ir.IRBuilder, _: ir.Value, ups: ir.Value, size: ir.Value, out: ir.Value) -> None:
    """Emit out = up * up if up is above zero, else 0. The arguments are those of the gates; the first is unused."""

    def part(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        place = b.mul(index, i64(4 * LANES))
        up = load(b, _FLOATS, b.add(ups, place), 4)
        above = b.select(b.fcmp_ordered("<", up, _all(0.0)), _all(0.0), up)
        store(b, b.fmul(above, above), b.add(out, place))
        return []

    loop(b, i64(0), b.sdiv(size, i64(LANES)), [], part)


@llvm.emits(types.void, types.int64, types.int64, types.float32)
def soft_cap(b: ir.IRBuilder, address: ir.Value, size: ir.Value, cap: ir.Value) -> None:
    """Emit x = cap * tanh(x / cap) in place; x: float32 [size], a multiple of 16. tanh(u) = 1 - 2 / (1 + e**2u)."""
    most = broadcast(b, cap, LANES)

    def part(index: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
        place = b.add(address, b.mul(index, i64(4 * LANES)))
        twice = b.fmul(b.fdiv(load(b, _FLOATS, place, 4), most), _all(2.0))
        below = b.fadd(exponential(b, twice), _all(1.0))
        store(b, b.fmul(most, b.fsub(_all(1.0), b.fdiv(_all(2.0), below))), place)
        return []

    loop(b, i64(0), b.sdiv(size, i64(LANES)), [], part)
