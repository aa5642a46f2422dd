"""Generate, as LLVM, the product of interleaved rows of weights and rows of activations, and compile it.
One lane holds one row of weights. Integers are added inside a block, then floats block after block, in one order
whatever the number of rows, so a row's bits do not depend on it."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import llvmlite
from llvmlite import binding, ir

from hierchat.engine.cpu import llvm
from hierchat.engine.cpu.llvm import F32, I8, I32, I64, broadcast, i64, kernel, load, loop, store, vector
from hierchat.engine.cpu.unpacking import (
    HALVED,
    HIGHEST,
    ISAS,
    LOWERED,
    MINIMUMS,
    PLAIN,
    TOO_HIGH,
    BlockReader,
    Isa,
)
from hierchat.jit import INSTRUCTIONS
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import Activations
from hierchat.models.formats.layouts import BLOCK, LAYOUTS, LEVELS

GROUP = 256
"""Activations to a scale."""
SUMS = 3
"""For each block of 32 int16: its integers added up, float32; those of its halves times -32, int32."""
BYTE_SUMS = 4
"""For each block of 32 int8: their sum times their scale, float32; the sums of its halves times -32, int32; the sums of
its halves, a pair of int16."""
AHEAD = 8192
"""Bytes of weights that are fetched before they are needed."""
_LINE = 64

ARGUMENTS = ("rows", "weights", "x", "scales", "sums", "blocks", "out", "stride", "count")


def takes_int8(name: str, isa: Isa, activations: Activations) -> bool:
    """Return whether a block type's product reads int8 activations; where that gains nothing it keeps int16."""
    return activations == "int8" and HIGHEST.get(name, 256) <= isa.highest


def build(
    name: str, isa: Isa, activations: Activations = "int16", passes: tuple[int, ...] | None = None
) -> ir.Module:
    """Build the module with the function `product`: out[row, n] for `rows` rows of activations, one of isa.rows, and
    `count` rows of weights of block type `name`. All arguments int64, most of them addresses:

    weights: of the first panel; x: int16 [blocks, rows, 32], or float32 [rows, 32 blocks] for plain types; scales:
    float32 [groups, rows], the scales of x; sums: [blocks, SUMS, rows], 4 bytes each; blocks: of 32, in a row; out:
    float32, `stride` bytes from one row of activations to the next. Where takes_int8: x int8, scales [blocks, rows],
    sums [blocks, BYTE_SUMS, rows]."""
    product = _ByteProduct if takes_int8(name, isa, activations) else _Product
    module = ir.Module(f"product_{name}")
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS))
    function = ir.Function(module, kind, "product")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    many, *given = function.args
    llvm.by_count(b, "product", many, passes or isa.rows, given, partial(product, name, isa))
    b.ret_void()
    return module


class _Product:
    """Emit the product for one number of rows of int16 or float32 activations; `given` are the ARGUMENTS behind it."""

    def __init__(self, name: str, isa: Isa, b: ir.IRBuilder, rows: int, *given: ir.Value) -> None:
        self.name, self.isa, self.b, self.rows = name, isa, b, rows
        self.layout = LAYOUTS[name]
        self.at = dict(zip(ARGUMENTS[1:], given, strict=True))
        self.reader = BlockReader(name, isa, b)
        self.floats = vector(F32, isa.lanes)
        self.zeros = [ir.Constant(self.floats, [0.0] * isa.lanes)] * rows
        self.scratch = (
            self._room(8 * max(self.reader.scale_count, 3)) if self.layout.weights == GROUP else None
        )
        self.last = self._room(1)
        self._panels()

    def _room(self, vectors: int) -> ir.Value:
        room = self.b.alloca(ir.ArrayType(self.floats, vectors))
        room.align = 4 * self.isa.lanes
        return self.b.ptrtoint(room, I64)

    def _panels(self) -> None:
        b, lanes = self.b, self.isa.lanes
        # Bytes of a block of 32, of a panel
        per_block = BLOCK * self.layout.size * lanes // self.layout.weights
        panel_bytes = b.mul(self.at["blocks"], i64(per_block))

        def panel(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            base = b.add(self.at["weights"], b.mul(number, panel_bytes))
            totals = self._totals(base, per_block)
            first = b.mul(number, i64(lanes))
            left = b.sub(self.at["count"], first)
            whole = b.icmp_signed(">=", left, i64(lanes))
            for row, total in enumerate(totals):
                place = b.add(self.at["out"], b.add(b.mul(first, i64(4)), b.mul(self.at["stride"], i64(row))))
                with b.if_else(whole) as (then, otherwise):
                    with then:
                        store(self.b, total, place)
                    with otherwise:
                        store(self.b, total, self.last)
                        self._copy(self.last, place, left)
            return []

        panels = b.sdiv(b.add(self.at["count"], i64(lanes - 1)), i64(lanes))
        loop(b, i64(0), panels, [], panel)

    def _copy(self, source: ir.Value, goal: ir.Value, count: ir.Value) -> None:
        b = self.b

        def one(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = b.mul(n, i64(4))
            store(self.b, load(b, F32, b.add(source, place), 4), b.add(goal, place))
            return []

        loop(b, i64(0), count, [], one)

    def _spread(self, kind: ir.Type, address: ir.Value) -> ir.Value:
        return broadcast(self.b, load(self.b, kind, address, 4), self.isa.lanes)

    def _fused(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return llvm.fused(self.b, x, y, z, self.isa.fused)

    def _fetch(self, address: ir.Value, size: int) -> None:
        """Prefetch weights AHEAD of `address`: the hardware's own prefetching ends with every page."""
        b = self.b
        for line in range(0, size, _LINE):
            pointer = b.inttoptr(b.add(address, i64(AHEAD + line)), I8.as_pointer())
            llvm.call(
                b, "llvm.prefetch.p0", ir.VoidType(), pointer, *(ir.Constant(I32, f) for f in (0, 3, 1))
            )

    def _totals(self, base: ir.Value, per_block: int) -> list[ir.Value]:
        if self.name in PLAIN:
            return self._plain(base, per_block)
        b, rows, blocks = self.b, self.rows, self.at["blocks"]

        def group(number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            first = b.mul(number, i64(8))
            there = b.add(base, b.mul(first, i64(per_block)))
            if self.scratch is not None:
                for place, scale in enumerate(self.reader.packed_scales(there)):
                    store(self.b, scale, b.add(self.scratch, i64(4 * self.isa.lanes * place)))
            left = b.sub(blocks, first)
            count = b.select(b.icmp_signed("<", left, i64(8)), left, i64(8))

            def block(j: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
                ahead = b.add(there, b.mul(j, i64(per_block)))
                self._fetch(ahead, per_block)
                return self._block(there if self.scratch is not None else ahead, first, j, parts)

            parts = loop(b, i64(0), count, self.zeros, block)
            steps = b.add(self.at["scales"], b.mul(number, i64(4 * rows)))
            return [
                self._fused(part, self._spread(F32, b.add(steps, i64(4 * row))), total)
                for row, (part, total) in enumerate(zip(parts, totals, strict=True))
            ]

        groups = b.udiv(b.add(blocks, i64(7)), i64(8))
        return loop(b, i64(0), groups, self.zeros, group)

    def _block(self, base: ir.Value, first: ir.Value, j: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
        """Emit parts + scale * (32 weights of every lane times 32 of every row) + minimum * sum for one block."""
        b, rows = self.b, self.rows
        if self.scratch is not None:
            size, count = 4 * self.isa.lanes, self.reader.scale_count
            place = b.add(self.scratch, b.mul(j, i64(count * size)))
            one, other, *least = (
                load(b, self.floats, b.add(place, i64(size * at)), size) for at in range(count)
            )
        else:
            (one, other), least = self.reader.scales(base), []
        number = b.add(first, j)
        x = b.add(self.at["x"], b.mul(number, i64(2 * BLOCK * rows)))
        sums = b.add(self.at["sums"], b.mul(number, i64(4 * SUMS * rows)))
        parts = list(parts)
        halved = self.name in HALVED
        if other is not None and not halved and self.name not in LEVELS:
            for row in range(rows):
                parts[row] = self._fused(other, self._spread(F32, b.add(sums, i64(4 * row))), parts[row])
        pairs = list(self.reader.pairs(base, j, rows == 1))
        halves = ((pairs[:8], one), (pairs[8:], other)) if halved else ((pairs, one),)
        for half, (mine, scale) in enumerate(halves, 1):
            totals: list[dict[tuple[int, int], ir.Value]] = [{} for _ in range(rows)]
            for row in range(rows if halved else 0):
                place = b.add(sums, i64(4 * (half * rows + row)))
                if self.name in TOO_HIGH:
                    totals[row][0, 0] = self._lowering(place)
                elif self.name in MINIMUMS:
                    sum_of = b.sitofp(self._spread(I32, place), self.floats)
                    parts[row] = self._fused(least[half - 1], sum_of, parts[row])
            for at, (weights, power) in enumerate(mine):
                chain = (power, at % self.isa.chains(rows) if power == 0 else 0)
                for row in range(rows):
                    index = at + 8 * (half - 1)
                    given = self._spread(I32, b.add(x, i64(2 * BLOCK * row + 4 * index)))
                    totals[row][chain] = self.isa.dot(b, totals[row].get(chain), weights, given)
            for row in range(rows):
                whole = self._added(totals[row])
                parts[row] = self._fused(b.sitofp(whole, self.floats), scale, parts[row])
        return parts

    def _lowering(self, address: ir.Value) -> ir.Value:
        """Emit the correction for weights stored too high, from -32 times the activations' sum at `address`."""
        found = self._spread(I32, address)
        bits = (32 // TOO_HIGH[self.name]).bit_length() - 1
        return self.b.ashr(found, self.reader.all_of(bits)) if bits else found

    def _added(self, totals: dict[tuple[int, int], ir.Value]) -> ir.Value:
        """Emit the sum of integer totals, each shifted down by the bits by which its weights stood too high."""
        b, found = self.b, None
        for (power, _), total in sorted(totals.items(), key=lambda item: item[0]):
            if power:
                total = b.ashr(total, self.reader.all_of(power))
            found = total if found is None else b.add(found, total)
        return found

    def _plain(self, base: ir.Value, per_block: int) -> list[ir.Value]:
        b, rows = self.b, self.rows
        row_bytes = b.mul(self.at["blocks"], i64(4 * BLOCK))
        starts = [b.add(self.at["x"], b.mul(row_bytes, i64(row))) for row in range(rows)]
        size = per_block // BLOCK

        def block(number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            there = b.add(base, b.mul(number, i64(per_block)))
            self._fetch(there, per_block)
            place = b.mul(number, i64(4 * BLOCK))

            def four(at: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
                for further in range(4):
                    k = b.add(b.mul(at, i64(4)), i64(further))
                    weights = self.reader.single(b.add(there, b.mul(k, i64(size))))
                    offset = b.add(place, b.mul(k, i64(4)))
                    parts = [
                        self._fused(weights, self._spread(F32, b.add(start, offset)), part)
                        for start, part in zip(starts, parts, strict=True)
                    ]
                return parts

            parts = loop(b, i64(0), i64(BLOCK // 4), self.zeros, four)
            return [b.fadd(total, part) for total, part in zip(totals, parts, strict=True)]

        return loop(b, i64(0), self.at["blocks"], self.zeros, block)


class _ByteProduct(_Product):
    """Product of int8 activations, which have a scale for each block of 32.
    If pairs are added to int16, they are multiplied by the integer scales of a super-block."""

    def _totals(self, base: ir.Value, per_block: int) -> list[ir.Value]:
        b, isa, reader = self.b, self.isa, self.reader
        blocks = self.at["blocks"]
        whole = self.scratch is not None  # super-blocks
        integer = whole and isa.octets == "pmaddubsw"
        size = 4 * isa.lanes

        def group(number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            first = b.mul(number, i64(8))
            there = b.add(base, b.mul(first, i64(per_block)))
            scales = reader.integer_scales(there) if integer else reader.packed_scales(there)
            for place, scale in enumerate(scales):
                store(self.b, scale, b.add(self.scratch, i64(size * place)))

            def block(j: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
                self._fetch(b.add(there, b.mul(j, i64(per_block))), per_block)
                return self._bytes(there, b.add(first, j), j, parts, integer)

            if not integer:
                return loop(b, i64(0), i64(8), totals, block)
            parts = loop(b, i64(0), i64(8), self.zeros, block)
            scale = reader.half(there)
            totals = [self._fused(scale, part, total) for part, total in zip(parts, totals, strict=True)]
            if self.name in HALVED:
                return totals

            def minimum(j: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
                place = b.add(self.scratch, b.add(b.mul(j, i64(2 * size)), i64(size)))
                return self._lowered(load(b, self.floats, place, size), b.add(first, j), totals)

            return loop(b, i64(0), i64(8), totals, minimum)

        def alone(number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            there = b.add(base, b.mul(number, i64(per_block)))
            self._fetch(there, per_block)
            return self._bytes(there, number, i64(0), totals, False)

        if whole:
            return loop(b, i64(0), b.udiv(blocks, i64(8)), self.zeros, group)
        return loop(b, i64(0), blocks, self.zeros, alone)

    def _lowered(self, least: ir.Value, number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """Emit totals + minimum * sum of a block, for every row of activations."""
        sums = self.b.add(self.at["sums"], self.b.mul(number, i64(4 * BYTE_SUMS * self.rows)))
        return [
            self._fused(least, self._spread(F32, self.b.add(sums, i64(4 * row))), total)
            for row, total in enumerate(totals)
        ]

    def _bytes(
        self, base: ir.Value, number: ir.Value, j: ir.Value, totals: list[ir.Value], integer: bool
    ) -> list[ir.Value]:
        """Emit totals + scales * (32 weights of every lane times 32 of every row) + minimum * sum for one block."""
        b, isa, rows = self.b, self.isa, self.rows
        halved = self.name in HALVED
        x = b.add(self.at["x"], b.mul(number, i64(BLOCK * rows)))
        steps = b.add(self.at["scales"], b.mul(number, i64(4 * rows)))
        sums = b.add(self.at["sums"], b.mul(number, i64(4 * BYTE_SUMS * rows)))
        scales: list[ir.Value] = []
        if self.scratch is not None:
            size, count = 4 * isa.lanes, 3 if integer and halved else 2
            kind = self.reader.ints if integer else self.floats
            place = b.add(self.scratch, b.mul(j, i64(count * size)))
            scales = [load(b, kind, b.add(place, i64(size * at)), size) for at in range(count)]
            if self.name in LOWERED:
                down = ir.Constant(self.floats, [-LOWERED[self.name]] * isa.lanes)
                scales[1] = b.fmul(scales[0], down)
        else:
            one, other = self.reader.scales(base, LOWERED)
            scales = [one] if other is None else [one, other]
        if not halved and not integer and len(scales) > 1:
            totals = self._lowered(scales[1], number, totals)
        words = list(self.reader.words(base, j))
        found = []
        for row, total in enumerate(totals):
            given = [self._spread(I32, b.add(x, i64(BLOCK * row + 4 * at))) for at in range(8)]
            level = self._spread(F32, b.add(steps, i64(4 * row)))
            place = b.add(sums, i64(4 * row))
            halves = [self._spread(I32, b.add(place, i64(4 * rows * at))) for at in (1, 2)] if halved else []
            if isa.octets == "pmaddubsw":
                dot = self._pairs(words, given, scales if integer else None)
                if halved:
                    dot = isa.dot(b, dot, scales[2], self._spread(I32, b.add(place, i64(12 * rows))))
                factor = level if integer else b.fmul(scales[0], level)
                found.append(self._fused(b.sitofp(dot, self.floats), factor, total))
            elif halved:
                one, other = (
                    b.sitofp(self._fours(words[at : at + 4], given[at : at + 4], start), self.floats)
                    for at, start in zip((0, 4), halves, strict=True)
                )
                both = self._fused(other, scales[1], b.fmul(one, scales[0]))
                found.append(self._fused(both, level, total))
            else:
                dot = b.sitofp(self._fours(words, given), self.floats)
                found.append(self._fused(dot, b.fmul(scales[0], level), total))
        return found

    def _fours(self, words: list[ir.Value], given: list[ir.Value], start: ir.Value | None = None) -> ir.Value:
        chains = min(2, self.isa.chains(self.rows))
        totals: list[ir.Value | None] = [start] + [None] * (chains - 1)
        for at, (one, other) in enumerate(zip(words, given, strict=True)):
            totals[at % chains] = self.isa.dot_bytes(self.b, totals[at % chains], one, other)
        return totals[0] if chains == 1 else self.b.add(totals[0], totals[1])

    def _pairs(self, words: list[ir.Value], given: list[ir.Value], scales: list[ir.Value] | None) -> ir.Value:
        """Emit products of bytes that are added to int16 as far as they fit, then times their scales to int32."""
        fit = min(8, 1 << (32767 // (HIGHEST[self.name] * 127 * 2)).bit_length() - 1)
        total = None
        for first in range(0, 8, fit):
            part = None
            for one, other in zip(words[first : first + fit], given[first : first + fit], strict=True):
                part = self.isa.dot_bytes(self.b, part, one, other)
            ones = self.reader.all_of(0x00010001)
            scale = ones if scales is None else scales[first // 4 if self.name in HALVED else 0]
            total = self.isa.dot(self.b, total, scale, self.b.bitcast(part, self.reader.ints))
        return total


_PLAINLY = {"vnni": "+fast-dpwssd"}
"""Or LLVM would take one instruction apart into two, for a latency that is hidden here."""

_LOCK = threading.Lock()
_ADDRESSES: dict[tuple[str, str, bool], int] = {}
_ENGINES: list[Any] = []
"""Own the code: it stays for as long as the process lives."""
_WITHOUT = {"avx512": ("avx512vnni", "avxvnni"), "avxvnni": ("avx512",), "avx2": ("avx512", "avxvnni")}
"""Features that begin so are left out, where an instruction set is chosen that has less than the processor."""


def product_address(name: str, isa: Isa = ISAS[INSTRUCTIONS], activations: Activations = "int16") -> int:
    """Return the address of a block type's product function (dot.build), compiled at most once per machine."""
    with _LOCK:
        key = (name, str(isa), takes_int8(name, isa, activations))
        if key not in _ADDRESSES:
            _ADDRESSES[key] = _loaded(_code(name, isa, activations))
        return _ADDRESSES[key]


def target_machine(isa: Isa, cpu: str | None = None, triple: str | None = None) -> binding.TargetMachine:
    """Return LLVM's target for this processor with no more than `isa` has; or, to look at the code, for another one."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    if triple:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    features = _PLAINLY.get(isa.pairs, "") if cpu else _features(isa)
    return target.create_target_machine(
        cpu=cpu or _processor(isa), features=features, opt=2, reloc="pic", codemodel="jitdefault"
    )


def compiled(module: ir.Module, machine: binding.TargetMachine) -> binding.ModuleRef:
    """Return the module, parsed, verified and optimised by LLVM."""
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    found = binding.parse_assembly(str(module))
    found.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    binding.create_pass_builder(machine, options).getModulePassManager().run(
        found, binding.create_pass_builder(machine, options)
    )
    return found


def _processor(isa: Isa) -> str:
    return "" if isa.name == "generic" else str(binding.get_host_cpu_name())


def _features(isa: Isa) -> str:
    if isa.name == "generic":
        return ""
    features = binding.get_host_cpu_features()
    for name in features:
        if name.startswith(_WITHOUT.get(isa.name, ())):
            features[name] = False
    found = [str(features.flatten()), _PLAINLY.get(isa.pairs, "")]
    return ",".join(filter(None, found))


def _file(name: str, isa: Isa, activations: Activations) -> Path:
    parts = [llvmlite.__version__, str(isa), str(LAYOUTS[name]), _processor(isa), _features(isa)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    form = "-int8" if takes_int8(name, isa, activations) else ""
    return kernel.folder / f"product-{name}-{isa.name}{form}-{digest}.o"


def _code(name: str, isa: Isa, activations: Activations) -> bytes:
    """Return a kernel's object file from disk, or compile it."""
    file = _file(name, isa, activations)
    with suppress(OSError):
        kept = file.read_bytes()
        if hashlib.sha256(kept[32:]).digest() == kept[:32]:
            return kept[32:]
    machine = target_machine(isa)
    code = bytes(machine.emit_object(compiled(build(name, isa, activations), machine)))
    with suppress(OSError):  # then the next start compiles again
        write_whole(file, hashlib.sha256(code).digest() + code)
    return code


def _loaded(code: bytes) -> int:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address("product"))
