"""What numba cannot say: vectors of LLVM, fused multiply-add, atomics."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hierchat import jit
from hierchat.jit import INSTRUCTIONS, Kernels

I8, I16, I32, I64, F16, F32 = (
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.HalfType(),
    ir.FloatType(),
)
FUSED = INSTRUCTIONS != "generic"
"""Whether the processor multiplies and adds in one rounding; elsewhere LLVM would call a slow library function."""

LANES = jit.LANES
"""Floats in a register."""


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def vector(kind: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(kind, lanes)


def zeros(kind: ir.VectorType) -> ir.Constant:
    return ir.Constant(kind, [0.0 if kind.element == F32 else 0] * kind.count)


def call(b: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), arguments)


def load(b: ir.IRBuilder, kind: ir.Type, address: ir.Value, align: int) -> ir.Value:
    """A value of `kind` at an address (an i64)."""
    return b.load(b.inttoptr(address, kind.as_pointer()), align=align)


def fused(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, floats or vectors of them."""
    if not FUSED:
        return b.fadd(b.fmul(x, y), z)
    name = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
    return call(b, f"llvm.fma.{name}", x.type, x, y, z)


def broadcast(b: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    kind = vector(value.type, lanes)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros(vector(I32, lanes)))


def slice_of(b: ir.IRBuilder, value: ir.Value, begin: int, lanes: int) -> ir.Value:
    mask = ir.Constant(vector(I32, lanes), list(range(begin, begin + lanes)))
    return b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def joined(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    lanes = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(vector(I32, lanes), list(range(lanes))))


def sum_of(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The lanes added in halves: a fixed order."""
    while value.type.count > 1:
        half = value.type.count // 2
        value = b.fadd(slice_of(b, value, 0, half), slice_of(b, value, half, half))
    return b.extract_element(value, ir.Constant(I32, 0))


def loop(
    b: ir.IRBuilder,
    first: ir.Value,
    last: ir.Value,
    values: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """for i in range(first, last): values = body(i, values), at least once; returns the last values."""
    before = b.block
    inside, behind = b.append_basic_block("loop"), b.append_basic_block("after")
    b.branch(inside)
    b.position_at_end(inside)
    index = b.phi(I64)
    index.add_incoming(first, before)
    carried = []
    for value in values:
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        carried.append(phi)
    results = body(index, carried)
    following = b.add(index, i64(1))
    index.add_incoming(following, b.block)
    for phi, result in zip(carried, results, strict=True):
        phi.add_incoming(result, b.block)
    b.cbranch(b.icmp_signed("<", following, last), inside, behind)
    b.position_at_end(behind)
    return results


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """float32 x * y + z in one rounding; loops over it become vector code."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return fused(b, *arguments)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def rounded(typingctx: Any, x: Any) -> Any:
    """float32 to the nearest whole number, ties to even."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return call(b, "llvm.rint.f32", F32, arguments[0])

    return types.float32(types.float32), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at an address; returns what stood there before."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        pointer = b.inttoptr(arguments[0], I64.as_pointer())
        return b.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """The int64 at an address, and everything that was written before it was set."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return b.load_atomic(b.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tells the processor that this is a waiting loop."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        if platform.machine().lower() in ("x86_64", "amd64"):
            call(b, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def clock(typingctx: Any) -> Any:
    """The processor's cycle counter, int64; for profiles only."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return call(b, "llvm.readcyclecounter", I64)

    return types.int64(), codegen


@intrinsic
def call_product(
    typingctx: Any,
    function: Any,
    height: Any,
    weights: Any,
    x: Any,
    scales: Any,
    sums: Any,
    blocks: Any,
    out: Any,
    stride: Any,
    count: Any,
) -> Any:
    """Calls the function at an address with what dot.build says that it takes; all int64."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        function, *rest = arguments
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(rest))
        b.call(b.inttoptr(function, kind.as_pointer()), rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), codegen


# The compiler of this package's kernels.


kernel = Kernels(__file__)


def is_compiled() -> bool:
    """Whether the code of this version lies on disk, so that the first forward need not compile."""
    return kernel.has("forward.forward")
