"""A block of activations as int16, in the order in which the products read them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hierchat.engine.cpu.llvm import F32, I16, I32, broadcast, call, i64, load, slice_of, vector
from hierchat.models.formats.layouts import BLOCK

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
