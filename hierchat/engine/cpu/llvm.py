"""Provide kernels with what numba cannot say: vectors of LLVM, fused multiply-add, atomics."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hierchat.jit import INSTRUCTIONS, Kernels

I8, I16, I32, I64 = map(ir.IntType, (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
FUSED = INSTRUCTIONS != "generic"
"""Whether the processor multiplies and adds in one rounding; elsewhere LLVM would call a slow library function."""


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
    """Emit the load of a value of `kind` from an address (an i64)."""
    return b.load(b.inttoptr(address, kind.as_pointer()), align=align)


def store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int = 4) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=align)


def fused(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value, once: bool = FUSED) -> ir.Value:
    """Emit x * y + z for floats or vectors of them; rounded `once` or twice."""
    if not once:
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


def halves(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    half = value.type.count // 2
    return [slice_of(b, value, at, half) for at in (0, half)]


def joined(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    lanes = 2 * low.type.count
    return b.shuffle_vector(low, high, ir.Constant(vector(I32, lanes), list(range(lanes))))


def folded(b: ir.IRBuilder, value: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Emit the reduction of a vector's lanes by `join`, always in halves: a fixed order."""
    while value.type.count > 1:
        value = join(*halves(b, value))
    return b.extract_element(value, ir.Constant(I32, 0))


def by_count(
    b: ir.IRBuilder,
    name: str,
    count: ir.Value,
    counts: Sequence[int],
    given: Sequence[ir.Value],
    body: Callable[..., Any],
) -> None:
    """Emit a switch over `count` that calls `body`, a function apart for each of `counts`, with `given`, all int64."""
    end = b.append_basic_block("counted")
    switch = b.switch(count, end)
    for number in counts:
        block = b.append_basic_block(f"count_{number}")
        switch.add_case(i64(number), block)
        b.position_at_end(block)
        apart(b, f"{name}_{number}", given, lambda inner, *own, number=number: body(inner, number, *own))
        b.branch(end)
    b.position_at_end(end)


def apart(b: ir.IRBuilder, name: str, given: Sequence[ir.Value], body: Callable[..., Any]) -> None:
    """Emit a call of `body`, compiled once as a function of this name, with `given`, all int64."""
    full = f"hierchat_{name}"
    function = b.module.globals.get(full)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(given))
        function = ir.Function(b.module, kind, full)
        function.linkage = "internal"
        function.attributes.add("noinline")
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        body(inner, *function.args)
        inner.ret_void()
    b.call(function, given)


def loop(
    b: ir.IRBuilder,
    first: ir.Value,
    last: ir.Value,
    values: list[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Emit for i in range(first, last): values = body(i, values), run at least once; returns the last values."""
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


def emits(result: types.Type, *kinds: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Turn a function that emits code, of the builder and a value of each of `kinds`, into one that kernels call."""

    def decorate(body: Callable[..., Any]) -> Any:
        def typed(typingctx: Any, *given: Any) -> Any:
            def codegen(context: Any, b: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
                found = body(b, *arguments)
                return context.get_dummy_value() if found is None else found

            return result(*kinds), codegen

        names = ("typingctx", *(f"argument{number}" for number in range(len(kinds))))
        parameters = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in names]
        typed.__name__, typed.__signature__ = body.__name__, Signature(parameters)  # type: ignore[attr-defined]
        return intrinsic(typed)

    return decorate


@emits(types.float32, types.float32, types.float32, types.float32)
def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Emit float32 x * y + z in one rounding; loops over it become vector code."""
    return fused(b, x, y, z)


@emits(types.float32, types.float32)
def rounded(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Emit the rounding of a float32 to the nearest whole number, ties to even."""
    return call(b, "llvm.rint.f32", F32, x)


@emits(types.int64, types.int64, types.int64)
def atomic_add(b: ir.IRBuilder, address: ir.Value, amount: ir.Value) -> ir.Value:
    """Emit an atomic addition to the int64 at an address, which returns what stood there before."""
    return b.atomic_rmw("add", b.inttoptr(address, I64.as_pointer()), amount, "seq_cst")


@emits(types.int64, types.int64)
def atomic_load(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Emit an atomic load of the int64 at an address; all that was written before it was set is visible then."""
    return b.load_atomic(b.inttoptr(address, I64.as_pointer()), "acquire", 8)


@emits(types.void)
def pause(b: ir.IRBuilder) -> None:
    """Emit the instruction that tells the processor that this is a waiting loop."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        call(b, "llvm.x86.sse2.pause", ir.VoidType())


@emits(types.void, *[types.int64] * 10)
def call_product(b: ir.IRBuilder, function: ir.Value, *given: ir.Value) -> None:
    """Emit a call of the function at an address with the int64 arguments that dot.build describes."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(given))
    b.call(b.inttoptr(function, kind.as_pointer()), given)


kernel = Kernels(__file__)
"""The compiler of this package's kernels."""


def is_compiled() -> bool:
    """Tell whether this version's machine code lies on disk, so that the first forward need not compile."""
    return kernel.has("forward.forward")
