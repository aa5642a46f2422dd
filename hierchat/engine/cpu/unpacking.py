"""Unpack panels of blocks (formats/layouts.py) to pairs of int16, one row per lane, with their scales.
Of four neighbours, numbers 0 and 2 are a pair, then 1 and 3; activations have the same order (rows.quantise)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llvmlite import ir

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.llvm import F16, F32, I8, I16, I32, broadcast, call, i64, load, vector
from hierchat.jit import LANES_OF
from hierchat.models.formats.layouts import BLOCK, LAYOUTS, LEVELS, WIDE


@dataclass(frozen=True, slots=True)
class Isa:
    """Describe an instruction set for `build` in dot.

    `rows`: rows of activations that one pass may compute, ascending. `pairs`: the instruction that multiplies pairs of
    int16 and adds them to int32 ("vnni"), only adds the two products ("madd"), or none ("plain" and "lanes"). `octets`:
    the one that multiplies bytes, weights by activations, and adds four products to int32 ("vpdpbusd", "usdot" and
    "sdot") or two to int16 ("pmaddubsw"), or none ("")."""

    name: str
    lanes: int
    pairs: str
    octets: str
    rows: tuple[int, ...]
    halves: bool
    """Whether the processor turns float16 into float32 by itself."""
    fused: bool
    """Whether it multiplies and adds in one rounding."""

    @property
    def most(self) -> int:
        return self.rows[-1]

    @property
    def highest(self) -> int:
        """Return the largest weight that it takes as an unsigned byte, so that all products fit; -1: none."""
        return {"": -1, "pmaddubsw": 63, "sdot": 127}.get(self.octets, 255)

    @property
    def lookup(self) -> str | None:
        """Return the instruction that looks bytes up in a table of 16, for each 16 of them; None: it takes several."""
        if self.pairs not in ("vnni", "madd"):
            return None
        return {16: "llvm.x86.avx512.pshuf.b.512", 8: "llvm.x86.avx2.pshuf.b"}[self.lanes]

    def chains(self, rows: int) -> int:
        """Return how many sums of one row run side by side, so that an instruction need not wait for the one before."""
        if self.pairs != "vnni":
            return 2 if rows <= 2 else 1
        registers = 16 if self.lanes == 16 else 10
        return next((chains for chains in (4, 2) if chains * rows <= registers), 1)

    def dot(self, b: ir.IRBuilder, total: ir.Value | None, one: ir.Value, other: ir.Value) -> ir.Value:
        """Emit total + the products of pairs of int16, one pair in each int32 of `one` and `other`."""
        whole, short = vector(I32, self.lanes), vector(I16, 2 * self.lanes)
        if self.pairs == "vnni":
            total = ir.Constant(whole, [0] * self.lanes) if total is None else total
            name = f"llvm.x86.avx512.vpdpwssd.{32 * self.lanes}"
            return call(b, name, whole, total, b.bitcast(one, short), b.bitcast(other, short))
        if self.pairs == "madd":
            name = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}[self.lanes]
            products = call(b, name, whole, b.bitcast(one, short), b.bitcast(other, short))
        elif self.pairs == "plain":  # LLVM knows this for the instruction where there is one
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

    def dot_bytes(self, b: ir.IRBuilder, total: ir.Value | None, one: ir.Value, other: ir.Value) -> ir.Value:
        """Emit total + unsigned bytes of `one` times signed ones of `other`: int32 of fours, or int16 of pairs."""
        lanes = self.lanes
        octets = vector(I8, 4 * lanes)
        one, other = b.bitcast(one, octets), b.bitcast(other, octets)
        if self.octets == "pmaddubsw":
            name = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}[lanes]
            products = call(b, name, vector(I16, 2 * lanes), one, other)
            return products if total is None else b.add(total, products)
        kind = vector(I32, lanes)
        total = ir.Constant(kind, [0] * lanes) if total is None else total
        if self.octets == "vpdpbusd":
            return call(b, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", kind, total, one, other)
        name = f"llvm.aarch64.neon.{self.octets}.v4i32.v16i8"
        given = zip(*(llvm.halves(b, value) for value in (total, one, other)), strict=True)
        return llvm.joined(b, *(call(b, name, vector(I32, 4), *half) for half in given))


_SMALL = (1, 2, 3, 4, 6, 8)
_LARGE = (1, 2, 3, 4, 6, 8, 12, 16)

ISAS = {
    isa.name: isa
    for isa in (
        Isa("avx512vnni", LANES_OF["avx512vnni"], "vnni", "vpdpbusd", _LARGE, True, True),
        Isa("avx512", LANES_OF["avx512"], "madd", "pmaddubsw", _LARGE, True, True),
        Isa("avxvnni", LANES_OF["avxvnni"], "vnni", "vpdpbusd", _SMALL, True, True),
        Isa("avx2", LANES_OF["avx2"], "madd", "pmaddubsw", _SMALL, True, True),
        Isa("i8mm", LANES_OF["i8mm"], "lanes", "usdot", _SMALL, True, True),
        Isa("dotprod", LANES_OF["dotprod"], "lanes", "sdot", _SMALL, True, True),
        Isa("neon", LANES_OF["neon"], "lanes", "", _SMALL, True, True),
        Isa("generic", LANES_OF["generic"], "plain", "", _SMALL, False, False),
    )
}


Pairs = Iterator[tuple[ir.Value, int]]
"""Sixteen vectors of the pairs of a block of 32, in order, each with the bits by which it stands too high."""
PLAIN = ("F16", "BF16", "F32")
POWERS = "MXFP4"
"""The type whose scales are powers of two, a byte each."""
HALVED = ("Q2_K", "Q3_K", "Q6_K", *WIDE)
"""Types with a scale for each half of a block of 32."""
TOO_HIGH = {"Q3_K": 4, "Q6_K": 32}
"""By how much the numbers of some of them are, which the sums of the activations make good."""
MINIMUMS = ("Q2_K",)
"""Those of them with a minimum for each half, too."""
_LOWERED = {"Q4_0": 8.0, "Q5_0": 16.0}
"""What is to be taken from the numbers of types that have no minimum of their own."""
LOWERED = {**_LOWERED, "Q8_0": 128.0, "IQ4_NL": 127.0, "IQ4_XS": 127.0, "MXFP4": 12.0}
"""The same where the numbers are read as unsigned bytes."""
HIGHEST = {"Q4_0": 15, "Q4_1": 15, "Q4_K": 15, "Q5_0": 31, "Q5_1": 31, "Q5_K": 31, "MXFP4": 24, "Q6_K": 63} | {
    "Q8_0": 255, "IQ4_NL": 240, "IQ4_XS": 240
}  # fmt: skip
"""Types whose numbers are read as unsigned bytes, up to the largest."""


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Emit code to read blocks of one type. Addresses are i64; `base`: where a panel's block (of the file) begins."""

    name: str
    isa: Isa
    b: ir.IRBuilder

    @property
    def ints(self) -> ir.VectorType:
        return vector(I32, self.isa.lanes)

    @property
    def floats(self) -> ir.VectorType:
        return vector(F32, self.isa.lanes)

    def all_of(self, value: int) -> ir.Constant:
        return ir.Constant(self.ints, [value] * self.isa.lanes)

    def field(self, base: ir.Value, number: int) -> ir.Value:
        return self.b.add(base, i64(LAYOUTS[self.name].place(number, self.isa.lanes)))

    def word(self, address: ir.Value, number: int | ir.Value) -> ir.Value:
        """Emit the load of word `number` of a field, for every row."""
        size = 4 * self.isa.lanes
        there = i64(size * number) if isinstance(number, int) else self.b.mul(number, i64(size))
        return load(self.b, self.ints, self.b.add(address, there), 2)

    def half(self, address: ir.Value) -> ir.Value:
        """Emit the load of a float16 of every row, as float32."""
        b, lanes = self.b, self.isa.lanes
        if self.isa.halves:
            return b.fpext(load(b, vector(F16, lanes), address, 2), self.floats)
        # By its bits: moved to float32's place, the exponents differ by 112. Not for what is no number.
        wide = b.zext(load(b, vector(I16, lanes), address, 2), self.ints)
        size = b.bitcast(b.shl(b.and_(wide, self.all_of(0x7FFF)), self.all_of(13)), self.floats)
        size = b.fmul(size, ir.Constant(self.floats, [2.0**112] * lanes))
        sign = b.shl(b.and_(wide, self.all_of(0x8000)), self.all_of(16))
        return b.bitcast(b.or_(b.bitcast(size, self.ints), sign), self.floats)

    def scales(
        self, base: ir.Value, lowered: Mapping[str, float] = _LOWERED
    ) -> tuple[ir.Value, ir.Value | None]:
        """Emit the scale and, if it has one, the minimum of a block of a type without super-blocks."""
        scale = self._power(base) if self.name == POWERS else self.half(base)
        if self.name in lowered:
            down = ir.Constant(self.floats, [-lowered[self.name]] * self.isa.lanes)
            return scale, self.b.fmul(scale, down)
        return scale, self.half(self.field(base, 1)) if self.name in ("Q4_1", "Q5_1") else None

    def _power(self, address: ir.Value) -> ir.Value:
        b, all_of = self.b, self.all_of
        byte = b.zext(load(b, vector(I8, self.isa.lanes), address, 1), self.ints)
        usual = b.shl(b.sub(byte, all_of(1)), all_of(23))
        small = b.shl(all_of(0x00200000), byte)  # too small for an exponent of their own
        return b.bitcast(b.select(b.icmp_unsigned("<", byte, all_of(2)), small, usual), self.floats)

    @property
    def scale_count(self) -> int:
        """Return how many vectors packed_scales yields for each block of 32."""
        return 4 if self.name in MINIMUMS else 2

    def packed_scales(self, base: ir.Value) -> Iterator[ir.Value]:
        """Emit the scales of a super-block: per block of 32 scale and minimum, or the scales of its halves."""
        b = self.b
        if self.name == "Q6_K" or self.name in WIDE:
            scale = self._scaled(self.half(base), WIDE.get(self.name, 1.0))
            for number in range(16):
                yield b.fmul(scale, b.sitofp(b.sext(self._byte(base, 1, number), self.ints), self.floats))
            return
        if self.name == "Q3_K":
            yield from self._six_bits(base)
            return
        if self.name == "Q2_K":
            scale, least = self.half(base), self._scaled(self.half(self.field(base, 1)), 1 / 32)
            for number in range(0, 16, 2):
                both = [b.zext(self._byte(base, 2, number + half), self.ints) for half in range(2)]
                for byte in both:
                    yield b.fmul(scale, b.sitofp(self.masked(byte, 0, 15), self.floats))
                for byte in both:
                    yield b.fmul(least, b.sitofp(self.masked(byte, 4, 15), self.floats))
            return
        if self.name == "IQ4_XS":
            high = b.zext(load(b, vector(I16, self.isa.lanes), self.field(base, 1), 2), self.ints)
            scale, low = self.half(base), self.word(self.field(base, 2), 0)
            for number in range(8):
                raised = b.or_(self.masked(low, 4 * number, 15), self.masked(high, 2 * number - 4, 48))
                yield b.fmul(scale, b.sitofp(b.sub(raised, self.all_of(32)), self.floats))
                yield ir.Constant(self.floats, [0.0] * self.isa.lanes)
            return
        scale, least = self.half(base), b.fneg(self.half(self.field(base, 1)))
        for one, other in self._sixes_of_words(base):
            yield b.fmul(scale, b.sitofp(one, self.floats))
            yield b.fmul(least, b.sitofp(other, self.floats))

    def _sixes_of_words(self, base: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Emit scale and minimum of each block of Q4_K and Q5_K, int32 from 0 to 63."""
        b, place = self.b, self.field(base, 2)
        first, second, third = (self.word(place, number) for number in range(3))

        def six(low: ir.Value, high: ir.Value, shift: int, other: int) -> ir.Value:
            low = b.and_(b.lshr(low, self.all_of(shift)), self.all_of(15))
            return b.or_(low, b.and_(b.lshr(high, self.all_of(other)), self.all_of(48)))

        for number in range(8):
            at = 8 * (number % 4)
            if number < 4:
                yield (
                    b.and_(b.lshr(first, self.all_of(at)), self.all_of(63)),
                    b.and_(b.lshr(second, self.all_of(at)), self.all_of(63)),
                )
            else:
                yield six(third, first, at, at + 2), six(third, second, at + 4, at + 2)

    def integer_scales(self, base: ir.Value) -> Iterator[ir.Value]:
        """Emit the integer scales of a super-block with one float16 scale: per block a pair of int16, a minimum."""
        b = self.b
        if self.name in HALVED:
            for number in range(0, 16, 2):
                one, other = (b.sext(self._byte(base, 1, number + half), self.ints) for half in range(2))
                yield self._pair(one, one)
                yield self._pair(other, other)
                minus = self.all_of(-32)
                yield self._pair(b.mul(one, minus), b.mul(other, minus))
            return
        least = b.fneg(self.half(self.field(base, 1)))
        for one, other in self._sixes_of_words(base):
            yield b.bitcast(self._pair(one, one), self.floats)
            yield b.fmul(least, b.sitofp(other, self.floats))

    def _pair(self, low: ir.Value, high: ir.Value) -> ir.Value:
        return self.b.or_(self.masked(low, 0, 0xFFFF), self.b.shl(high, self.all_of(16)))

    def words(self, base: ir.Value, block: ir.Value) -> Iterator[ir.Value]:
        """Emit eight words of a block of 32, each four neighbours as unsigned bytes; LOWERED: by how much too high."""
        place, b = self.numbers(base, block), self.b
        bits = LAYOUTS[self.name].bits
        if bits == 8:
            for number in range(8):
                yield b.xor(self.word(place, number), self.all_of(0x80808080))
        elif bits == 6:
            yield from self._sixes(place)
        else:
            fifth = self.word(place, 0) if bits == 5 else None
            for at, word in enumerate(self._fours(place, bits == 5)):
                if fifth is not None:
                    low = self.masked(fifth, 2 * at - 4, 0x00100010)
                    word = b.or_(word, b.or_(low, self.masked(fifth, 2 * at - 11, 0x10001000)))
                if self.name in LEVELS:
                    word = _looked_up(self, word, int(LOWERED[self.name]))
                yield word

    def _fours(self, place: ir.Value, first: int = 0) -> Iterator[ir.Value]:
        """Emit numbers from 0 to 15: the low halves of four words, then the high ones."""
        words = [self.word(place, number + first) for number in range(4)]
        yield from (self.masked(word, shift, 0x0F0F0F0F) for shift in (0, 4) for word in words)

    def _sixes(self, place: ir.Value) -> Iterator[ir.Value]:
        """Emit numbers from 0 to 63: the fourth word is made of what is left in three."""
        for half in range(2):
            words = [self.word(place, 3 * half + number) for number in range(3)]
            yield from (self.masked(word, 0, 0x3F3F3F3F) for word in words)
            parts = [self.masked(word, 6 - 2 * at, 0x03030303 << 2 * at) for at, word in enumerate(words)]
            yield self.b.or_(self.b.or_(*parts[:2]), parts[2])

    def _scaled(self, value: ir.Value, factor: float) -> ir.Value:
        return (
            value if factor == 1 else self.b.fmul(value, ir.Constant(self.floats, [factor] * self.isa.lanes))
        )

    def _byte(self, base: ir.Value, field: int, number: int) -> ir.Value:
        place = self.b.add(self.field(base, field), i64(self.isa.lanes * number))
        return load(self.b, vector(I8, self.isa.lanes), place, 1)

    def _six_bits(self, base: ir.Value) -> Iterator[ir.Value]:
        """Emit the scales of Q3_K: two words of low bits, two in a byte, and one of high bits, four in a byte."""
        b, scale = self.b, self.half(base)
        words = [self.word(self.field(base, 1), number) for number in range(3)]
        for number in range(16):
            at, turn = 8 * (number % 4), number // 4
            low = self.masked(words[turn % 2], at + 4 * (turn // 2), 15)
            high = self.masked(words[2], at + 2 * turn - 4, 48)
            yield b.fmul(scale, b.sitofp(b.sub(b.or_(low, high), self.all_of(32)), self.floats))

    def numbers(self, base: ir.Value, block: ir.Value) -> ir.Value:
        """Emit the address of the words of block `block` (0 to 7) of a super-block, or of the only one."""
        layout, lanes = LAYOUTS[self.name], self.isa.lanes
        there = self.b.add(base, i64(layout.head_size * lanes))
        return (
            there
            if layout.weights == BLOCK
            else self.b.add(there, self.b.mul(block, i64(4 * layout.bits * lanes)))
        )

    def pairs(self, base: ir.Value, block: ir.Value, lean: bool) -> Pairs:
        """Emit a block's 32 weights as pairs. `lean`: fewer instructions here, more behind: pays for one row only."""
        if self.name in ("Q2_K", "Q3_K"):
            return _stored(self, base, block)
        place = self.numbers(base, block)
        bits = LAYOUTS[self.name].bits
        if self.name in LEVELS:
            words = (_looked_up(self, word) for word in self._fours(place))
            return (pair for word in words for pair in _signed(self, word))
        if bits == 8:
            return (pair for number in range(8) for pair in _signed(self, self.word(place, number)))
        if bits == 6:
            return (pair for word in self._sixes(place) for pair in _bytes(self, word))
        return _lean_fours(self, place) if lean and bits == 4 else _fours(self, place, bits == 5)

    def single(self, address: ir.Value) -> ir.Value:
        """Emit the load of one weight of every row, of a plain type, as float32."""
        if self.name == "F32":
            return load(self.b, self.floats, address, 2)
        if self.name == "F16":
            return self.half(address)
        raw = self.b.zext(load(self.b, vector(I16, self.isa.lanes), address, 2), self.ints)
        return self.b.bitcast(self.b.shl(raw, self.all_of(16)), self.floats)

    def short(self, value: ir.Value) -> ir.Value:
        return self.b.bitcast(value, vector(I16, 2 * self.isa.lanes))

    def shorts(self, value: int) -> ir.Constant:
        return ir.Constant(vector(I16, 2 * self.isa.lanes), [value] * (2 * self.isa.lanes))

    def masked(self, word: ir.Value, shift: int, mask: int) -> ir.Value:
        """Emit (word >> shift) & mask, a shift to the left where it is negative."""
        b = self.b
        if shift:
            word = b.lshr(word, self.all_of(shift)) if shift > 0 else b.shl(word, self.all_of(-shift))
        return b.and_(word, self.all_of(mask))


def _fours(reader: BlockReader, place: ir.Value, fifth: bool) -> Pairs:
    """Emit pairs of 4-bit weights: the low halves of four words, then the high ones; with a fifth bit if `fifth`."""
    b, nibbles = reader.b, 0x000F000F
    bits = reader.word(place, 0) if fifth else None
    words = [reader.word(place, number + fifth) for number in range(4)]
    at = 0
    for first in (0, 4):
        for word in words:
            last = b.lshr(reader.short(word), reader.shorts(12))
            for pair in (
                reader.masked(word, first, nibbles),
                reader.masked(word, 8, nibbles) if first == 0 else b.bitcast(last, reader.ints),
            ):
                yield pair if bits is None else b.or_(pair, reader.masked(bits, at - 4, 0x00100010)), 0
                at += 1


def _stored(reader: BlockReader, base: ir.Value, block: ir.Value) -> Pairs:
    """Emit pairs of 2-bit weights of words that four blocks share; of Q3_K with a third bit, which eight share."""
    b, lanes, third = reader.b, reader.isa.lanes, reader.name == "Q3_K"
    place = b.add(reader.field(base, 3), b.mul(b.udiv(block, i64(4)), i64(8 * 4 * lanes)))

    def shift(bits: ir.Value) -> ir.Value:
        return broadcast(b, b.trunc(bits, I32), lanes)

    two, one = shift(b.mul(b.urem(block, i64(4)), i64(2))), shift(block)
    for number in range(8):
        word = b.and_(b.lshr(reader.word(place, number), two), reader.all_of(0x03030303))
        if third:
            bit = b.lshr(reader.word(reader.field(base, 2), number), one)
            word = b.or_(word, b.shl(b.and_(bit, reader.all_of(0x01010101)), reader.all_of(2)))
        yield from _bytes(reader, word)


def _lean_fours(reader: BlockReader, place: ir.Value) -> Pairs:
    """Emit pairs of 4-bit weights by one instruction each: most keep their place in the word, 4 or 8 bits too high."""
    words = [reader.word(place, number) for number in range(4)]
    for word in words:
        yield reader.masked(word, 0, 0x000F000F), 0
        yield reader.masked(word, 0, 0x0F000F00), 8
    for word in words:
        yield reader.masked(word, 0, 0x00F000F0), 4
        yield reader.b.lshr(reader.short(word), reader.shorts(12)), 0


def _looked_up(reader: BlockReader, word: ir.Value, raised: int = 0) -> ir.Value:
    """Emit the LEVELS of the numbers from 0 to 15 in the bytes of a word, each raised by `raised`."""
    b, count = reader.b, 4 * reader.isa.lanes
    levels = [level + raised for level in LEVELS[reader.name]]
    kind = vector(I8, count)
    numbers = b.bitcast(word, kind)
    if lookup := reader.isa.lookup:
        table = ir.Constant(kind, [level % 256 for level in levels] * (count // 16))
        return b.bitcast(call(b, lookup, kind, table, numbers), reader.ints)
    found = [ir.Constant(kind, [level % 256] * count) for level in levels]
    for bit in range(4):  # halved with every bit of the number
        there = b.icmp_unsigned(
            "!=", b.and_(numbers, ir.Constant(kind, [1 << bit] * count)), ir.Constant(kind, [0] * count)
        )
        found = [b.select(there, one, zero) for zero, one in zip(found[::2], found[1::2], strict=True)]
    return b.bitcast(found[0], reader.ints)


def _bytes(reader: BlockReader, word: ir.Value) -> Pairs:
    yield reader.masked(word, 0, 0x00FF00FF), 0
    yield reader.b.lshr(reader.short(word), reader.shorts(8)), 0


def _signed(reader: BlockReader, word: ir.Value) -> Pairs:
    b, short = reader.b, reader.short(word)
    yield b.ashr(b.shl(short, reader.shorts(8)), reader.shorts(8)), 0
    yield b.ashr(short, reader.shorts(8)), 0
