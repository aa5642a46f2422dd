"""Interleaved rows of weights times rows of activations: the inner loop of everything, generated as LLVM.

One lane holds one row of weights. Quantised weights meet activations of int16 with a scale per GROUP of a row
(rows.quantise): products are added as integers inside a block, then as floats block after block, group after group.
Plain weights meet float32. No order depends on how many rows are computed together, so a row's bits do not either."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from hierchat.engine.cpu.llvm import F32, I8, I32, I64, broadcast, call, i64, kernel, load, loop, vector
from hierchat.engine.cpu.unpacking import HALVED, ISAS, MINIMUMS, PLAIN, TOO_HIGH, Isa, Reader, single
from hierchat.jit import INSTRUCTIONS
from hierchat.models.cache import write_whole
from hierchat.models.formats.layouts import BLOCK, LAYOUTS, LEVELS

GROUP = 256
"""Activations to a scale."""
SUMS = 3
"""For each block of 32: its integers added up, float32; those of its halves times -32, int32."""
AHEAD = 8192
"""Bytes of weights that are fetched before they are needed."""
_LINE = 64

ARGUMENTS = ("height", "weights", "x", "levels", "sums", "blocks", "out", "stride", "count")


def build(name: str, isa: Isa, heights: tuple[int, ...] | None = None) -> ir.Module:
    """The module with the function `product`: out[row, n] for `height` rows of activations, one of isa.heights, and
    `count` rows of weights of block type `name`. All arguments int64, most of them addresses:

    weights: of the first panel; x: int16 [blocks, height, 32], or float32 [height, 32 blocks] for plain types;
    levels: float32 [groups, height], the scales of x; sums: [blocks, SUMS, height], 4 bytes each; blocks: of 32, in a
    row; out: float32, `stride` bytes from one row of activations to the next.
    """
    module = ir.Module(f"product_{name}")
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(ARGUMENTS))
    function = ir.Function(module, kind, "product")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    end = function.append_basic_block("end")
    switch = b.switch(function.args[0], end)
    for height in heights or isa.heights:
        inner = _Product(module, name, isa, height).function
        block = function.append_basic_block(f"height_{height}")
        switch.add_case(i64(height), block)
        b.position_at_end(block)
        b.call(inner, function.args[1:])
        b.branch(end)
    b.position_at_end(end)
    b.ret_void()
    return module


class _Product:
    """The function for one height."""

    def __init__(self, module: ir.Module, name: str, isa: Isa, height: int) -> None:
        self.name, self.isa, self.height = name, isa, height
        self.layout = LAYOUTS[name]
        kind = ir.FunctionType(ir.VoidType(), [I64] * (len(ARGUMENTS) - 1))
        self.function = ir.Function(module, kind, f"product_{height}")
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.at = dict(zip(ARGUMENTS[1:], self.function.args, strict=True))
        self.reader = Reader(name, isa, self.b)
        self.floats = vector(F32, isa.lanes)
        self.zeros = [ir.Constant(self.floats, [0.0] * isa.lanes)] * height
        self.scratch = self._room(8 * self.reader.scale_count) if self.layout.weights == GROUP else None
        self.last = self._room(1)
        self._panels()

    def _room(self, vectors: int) -> ir.Value:
        """Memory of the function's own, aligned."""
        room = self.b.alloca(ir.ArrayType(self.floats, vectors))
        room.align = 4 * self.isa.lanes
        return self.b.ptrtoint(room, I64)

    def _panels(self) -> None:
        b, lanes = self.b, self.isa.lanes
        per_block = (
            BLOCK * self.layout.size * lanes // self.layout.weights
        )  # bytes of a block of 32, of a panel
        panel_bytes = b.mul(self.at["blocks"], i64(per_block))
        one_row = self._plain if self.name in PLAIN else self._quantised

        def panel(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            base = b.add(self.at["weights"], b.mul(number, panel_bytes))
            totals = one_row(base, per_block)
            first = b.mul(number, i64(lanes))
            left = b.sub(self.at["count"], first)
            whole = b.icmp_signed(">=", left, i64(lanes))
            for row, total in enumerate(totals):
                place = b.add(self.at["out"], b.add(b.mul(first, i64(4)), b.mul(self.at["stride"], i64(row))))
                with b.if_else(whole) as (then, otherwise):
                    with then:
                        self._store(total, place)
                    with otherwise:
                        self._store(total, self.last)
                        self._copy(self.last, place, left)
            return []

        panels = b.sdiv(b.add(self.at["count"], i64(lanes - 1)), i64(lanes))
        loop(b, i64(0), panels, [], panel)
        b.ret_void()

    def _store(self, value: ir.Value, address: ir.Value) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=4)

    def _copy(self, source: ir.Value, goal: ir.Value, count: ir.Value) -> None:
        b = self.b

        def one(n: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            place = b.mul(n, i64(4))
            self._store(load(b, F32, b.add(source, place), 4), b.add(goal, place))
            return []

        loop(b, i64(0), count, [], one)

    def _spread(self, kind: ir.Type, address: ir.Value) -> ir.Value:
        return broadcast(self.b, load(self.b, kind, address, 4), self.isa.lanes)

    def _fused(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if not self.isa.fused:
            return self.b.fadd(self.b.fmul(x, y), z)
        return call(self.b, f"llvm.fma.v{self.isa.lanes}f32", self.floats, x, y, z)

    def _fetch(self, address: ir.Value, size: int) -> None:
        """Brings what lies ahead, if anything, into the nearest cache: the hardware's own looking ahead ends with
        every page, and stops where the next weights are awaited."""
        b = self.b
        for line in range(0, size, _LINE):
            pointer = b.inttoptr(b.add(address, i64(AHEAD + line)), I8.as_pointer())
            call(b, "llvm.prefetch.p0", ir.VoidType(), pointer, *(ir.Constant(I32, f) for f in (0, 3, 1)))

    def _quantised(self, base: ir.Value, per_block: int) -> list[ir.Value]:
        """The totals of each row of activations: groups of eight blocks, each group scaled once."""
        b, height, blocks = self.b, self.height, self.at["blocks"]

        def group(number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            first = b.mul(number, i64(8))
            there = b.add(base, b.mul(first, i64(per_block)))
            if self.scratch is not None:
                for place, scale in enumerate(self.reader.packed_scales(there)):
                    self._store(scale, b.add(self.scratch, i64(4 * self.isa.lanes * place)))
            left = b.sub(blocks, first)
            count = b.select(b.icmp_signed("<", left, i64(8)), left, i64(8))

            def block(j: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
                ahead = b.add(there, b.mul(j, i64(per_block)))
                self._fetch(ahead, per_block)
                return self._block(there if self.scratch is not None else ahead, first, j, parts)

            parts = loop(b, i64(0), count, self.zeros, block)
            levels = b.add(self.at["levels"], b.mul(number, i64(4 * height)))
            return [
                self._fused(part, self._spread(F32, b.add(levels, i64(4 * row))), total)
                for row, (part, total) in enumerate(zip(parts, totals, strict=True))
            ]

        groups = b.udiv(b.add(blocks, i64(7)), i64(8))
        return loop(b, i64(0), groups, self.zeros, group)

    def _block(self, base: ir.Value, first: ir.Value, j: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
        """parts + scale * (32 weights of every lane times 32 of every row) + minimum * sum."""
        b, height = self.b, self.height
        if self.scratch is not None:
            size, count = 4 * self.isa.lanes, self.reader.scale_count
            place = b.add(self.scratch, b.mul(j, i64(count * size)))
            one, other, *least = (
                load(b, self.floats, b.add(place, i64(size * at)), size) for at in range(count)
            )
        else:
            (one, other), least = self.reader.scales(base), []
        number = b.add(first, j)
        x = b.add(self.at["x"], b.mul(number, i64(2 * BLOCK * height)))
        sums = b.add(self.at["sums"], b.mul(number, i64(4 * SUMS * height)))
        parts = list(parts)
        halved = self.name in HALVED
        if other is not None and not halved and self.name not in LEVELS:
            for row in range(height):
                parts[row] = self._fused(other, self._spread(F32, b.add(sums, i64(4 * row))), parts[row])
        pairs = list(self.reader.pairs(base, j, height == 1))
        halves = ((pairs[:8], one), (pairs[8:], other)) if halved else ((pairs, one),)
        for half, (mine, scale) in enumerate(halves, 1):
            totals: list[dict[tuple[int, int], ir.Value]] = [{} for _ in range(height)]
            for row in range(height if halved else 0):
                place = b.add(sums, i64(4 * (half * height + row)))
                if self.name in TOO_HIGH:
                    totals[row][0, 0] = self._lowering(place)
                elif self.name in MINIMUMS:
                    sum_of = b.sitofp(self._spread(I32, place), self.floats)
                    parts[row] = self._fused(least[half - 1], sum_of, parts[row])
            for at, (weights, power) in enumerate(mine):
                chain = (power, at % self.isa.chains(height) if power == 0 else 0)
                for row in range(height):
                    index = at + 8 * (half - 1)
                    given = self._spread(I32, b.add(x, i64(2 * BLOCK * row + 4 * index)))
                    totals[row][chain] = self.isa.dot(b, totals[row].get(chain), weights, given)
            for row in range(height):
                whole = self._added(totals[row])
                parts[row] = self._fused(b.sitofp(whole, self.floats), scale, parts[row])
        return parts

    def _lowering(self, address: ir.Value) -> ir.Value:
        """What makes numbers good that are too high, from -32 times a sum of activations."""
        found = self._spread(I32, address)
        bits = (32 // TOO_HIGH[self.name]).bit_length() - 1
        return self.b.ashr(found, self.reader.all_of(bits)) if bits else found

    def _added(self, totals: dict[tuple[int, int], ir.Value]) -> ir.Value:
        """Sums of integers, each brought down by the bits by which its weights stood too high."""
        b, found = self.b, None
        for (power, _), total in sorted(totals.items(), key=lambda item: item[0]):
            if power:
                total = b.ashr(total, self.reader.all_of(power))
            found = total if found is None else b.add(found, total)
        return found

    def _plain(self, base: ir.Value, per_block: int) -> list[ir.Value]:
        """Float weights: a sum for each block of 32, the sums added in order."""
        b, height = self.b, self.height
        row_bytes = b.mul(self.at["blocks"], i64(4 * BLOCK))
        rows = [b.add(self.at["x"], b.mul(row_bytes, i64(row))) for row in range(height)]
        size = per_block // BLOCK

        def block(number: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
            there = b.add(base, b.mul(number, i64(per_block)))
            self._fetch(there, per_block)
            place = b.mul(number, i64(4 * BLOCK))

            def four(at: ir.Value, parts: list[ir.Value]) -> list[ir.Value]:
                for further in range(4):
                    k = b.add(b.mul(at, i64(4)), i64(further))
                    weights = single(self.reader, b.add(there, b.mul(k, i64(size))))
                    offset = b.add(place, b.mul(k, i64(4)))
                    parts = [
                        self._fused(weights, self._spread(F32, b.add(row, offset)), part)
                        for row, part in zip(rows, parts, strict=True)
                    ]
                return parts

            parts = loop(b, i64(0), i64(BLOCK // 4), self.zeros, four)
            return [b.fadd(total, part) for total, part in zip(totals, parts, strict=True)]

        return loop(b, i64(0), self.at["blocks"], self.zeros, block)


# Machine code of the product kernels: compiled for one block type at a time, when a model first needs it,
# and kept on disk.


_PLAINLY = {"vnni": "+fast-dpwssd"}
"""Or LLVM would take one instruction apart into two, for a latency that is hidden here."""

_LOCK = threading.Lock()
_ADDRESSES: dict[tuple[str, str], int] = {}
_ENGINES: list[Any] = []
"""Own the code: it stays for as long as the process lives."""
_WITHOUT = {
    "avx512": ("avx512vnni", "avxvnni"),
    "avxvnni": ("avx512",),
    "avx2": ("avx512", "avxvnni"),
}
"""Features that begin so are left out, where an instruction set is chosen that has less than the processor."""


def product_address(name: str, isa: Isa = ISAS[INSTRUCTIONS]) -> int:
    """The address of the function that dot.build describes, for a block type; compiled at most once per machine."""
    with _LOCK:
        key = (name, str(isa))
        if key not in _ADDRESSES:
            _ADDRESSES[key] = _loaded(_code(name, isa))
        return _ADDRESSES[key]


def is_kept(name: str) -> bool:
    """Whether the code for a block type lies on disk."""
    return _file(name, ISAS[INSTRUCTIONS]).exists()


def target_machine(isa: Isa, cpu: str | None = None, triple: str | None = None) -> llvm.TargetMachine:
    """For this processor, with no more than the instruction set says; or, to look at the code, for another."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    features = _PLAINLY.get(isa.pairs, "") if cpu else _features(isa)
    return target.create_target_machine(
        cpu=cpu or _processor(isa), features=features, opt=2, reloc="pic", codemodel="jitdefault"
    )


def compiled(module: ir.Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The module, optimised."""
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    found = llvm.parse_assembly(str(module))
    found.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        found, llvm.create_pass_builder(machine, options)
    )
    return found


def _processor(isa: Isa) -> str:
    return "" if isa.name == "generic" else str(llvm.get_host_cpu_name())


def _features(isa: Isa) -> str:
    if isa.name == "generic":
        return ""
    features = llvm.get_host_cpu_features()
    for name in features:
        if name.startswith(_WITHOUT.get(isa.name, ())):
            features[name] = False
    found = [str(features.flatten()), _PLAINLY.get(isa.pairs, "")]
    return ",".join(filter(None, found))


def _file(name: str, isa: Isa) -> Path:
    parts = [llvmlite.__version__, str(isa), str(LAYOUTS[name]), _processor(isa), _features(isa)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return kernel.folder / f"product-{name}-{isa.name}-{digest}.o"


def _code(name: str, isa: Isa) -> bytes:
    """The object file, from disk or made now. What is damaged on disk is made anew."""
    file = _file(name, isa)
    with suppress(OSError):
        kept = file.read_bytes()
        if hashlib.sha256(kept[32:]).digest() == kept[:32]:
            return kept[32:]
    machine = target_machine(isa)
    code = bytes(machine.emit_object(compiled(build(name, isa), machine)))
    with suppress(OSError):  # then the next start compiles again
        write_whole(file, hashlib.sha256(code).digest() + code)
    return code


def _loaded(code: bytes) -> int:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address("product"))
