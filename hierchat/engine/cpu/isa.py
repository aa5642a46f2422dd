"""What the product kernels ask of a processor: how many rows of weights fill a register, and how pairs of int16 are
multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from hierchat.engine.cpu.llvm import I16, I32, call, vector
from hierchat.jit import LANES_OF


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set for `build` in dot.

    `heights`: rows of activations that one pass may compute, ascending. `pairs`: the instruction that multiplies pairs
    of int16 and adds them to int32 ("vnni"), only adds the two products ("madd"), or none ("plain" and "lanes").
    """

    name: str
    lanes: int
    pairs: str
    heights: tuple[int, ...]
    halves: bool
    """Whether the processor turns float16 into float32 by itself."""
    fused: bool
    """Whether it multiplies and adds in one rounding."""
    exact_model: bool = False
    """Plain LLVM in place of the instructions: for tests on a processor that lacks them."""

    @property
    def most(self) -> int:
        return self.heights[-1]

    @property
    def lookup(self) -> str | None:
        """The instruction that looks bytes up in a table of 16 for each 16 of them; None: several in its place."""
        if self.exact_model or self.pairs not in ("vnni", "madd"):
            return None
        return {16: "llvm.x86.avx512.pshuf.b.512", 8: "llvm.x86.avx2.pshuf.b"}[self.lanes]

    def chains(self, height: int) -> int:
        """Sums of one row that run side by side, so that an instruction need not wait for the one before."""
        if self.pairs != "vnni":
            return 2 if height <= 2 else 1
        registers = 16 if self.lanes == 16 else 10
        return next((chains for chains in (4, 2) if chains * height <= registers), 1)

    def dot(self, b: ir.IRBuilder, total: ir.Value | None, one: ir.Value, other: ir.Value) -> ir.Value:
        """total + the products of pairs of int16, one pair in each int32 of `one` and `other`."""
        pairs = "plain" if self.exact_model and self.pairs in ("vnni", "madd") else self.pairs
        whole, short = vector(I32, self.lanes), vector(I16, 2 * self.lanes)
        if pairs == "vnni":
            total = ir.Constant(whole, [0] * self.lanes) if total is None else total
            name = f"llvm.x86.avx512.vpdpwssd.{32 * self.lanes}"
            return call(b, name, whole, total, b.bitcast(one, short), b.bitcast(other, short))
        if pairs == "madd":
            name = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}[self.lanes]
            products = call(b, name, whole, b.bitcast(one, short), b.bitcast(other, short))
        elif pairs == "plain":  # LLVM knows this for the instruction where there is one
            wide = vector(I32, 2 * self.lanes)
            both = b.mul(b.sext(b.bitcast(one, short), wide), b.sext(b.bitcast(other, short), wide))
            even, odd = (ir.Constant(whole, list(range(at, 2 * self.lanes, 2))) for at in (0, 1))
            none = ir.Constant(wide, ir.Undefined)
            products = b.add(b.shuffle_vector(both, none, even), b.shuffle_vector(both, none, odd))
        else:  # "lanes": multiply and add in the lanes of int32
            sixteen = ir.Constant(whole, [16] * self.lanes)

            def parts(value: ir.Value) -> tuple[ir.Value, ir.Value]:
                value = b.bitcast(value, whole)
                return b.ashr(b.shl(value, sixteen), sixteen), b.ashr(value, sixteen)

            (w0, w1), (x0, x1) = parts(one), parts(other)
            low = b.mul(w0, x0)
            total = low if total is None else b.add(total, low)
            return b.add(total, b.mul(w1, x1))
        return products if total is None else b.add(total, products)


_SMALL = (1, 2, 3, 4, 6, 8)
_LARGE = (1, 2, 3, 4, 6, 8, 12, 16)

ISAS = {
    isa.name: isa
    for isa in (
        Isa("avx512vnni", LANES_OF["avx512vnni"], "vnni", _LARGE, True, True),
        Isa("avx512", LANES_OF["avx512"], "madd", _LARGE, True, True),
        Isa("avxvnni", LANES_OF["avxvnni"], "vnni", _SMALL, True, True),
        Isa("avx2", LANES_OF["avx2"], "madd", _SMALL, True, True),
        Isa("neon", LANES_OF["neon"], "lanes", _SMALL, True, True),
        Isa("generic", LANES_OF["generic"], "plain", _SMALL, False, False),
    )
}
