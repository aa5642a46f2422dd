"""Lay the blocks of a GGUF file out in memory: rows interleaved, so that a register holds one place of many rows.
A panel is `lanes` rows. Of each block it holds the head (scales), field by field, for all rows side by side; then for
each 32 weights their numbers in words of 32 bits, ordered for `pack`. The size stays that of the file, plus rows of
zeros in the last panel."""

import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierchat.jit import Kernels

VERSION = 3
"""A new number for every change of what stands here: it remakes every cache."""

BLOCK = 32
"""Weights that share a scale, or two; the pace of the products for every type."""


def _signed(*levels: int) -> tuple[int, ...]:
    return (*levels, *(-level for level in levels))


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
LEVELS = {
    "IQ4_NL": _IQ4,
    "IQ4_XS": _IQ4,
    "MXFP4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
    "IQ1_WIDE": (-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0),
    "IQ2_WIDE": _signed(8, 25, 43, 0, 0, 0, 0, 0),
    "IQ3_WIDE": _signed(4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S_WIDE": _signed(1, 3, 5, 7, 9, 11, 13, 15),
}
"""Values of some block types' numbers; those of MXFP4 twice as large."""

WIDE = {"IQ1_WIDE": 0.125, "IQ2_WIDE": 0.125, "IQ3_WIDE": 0.25, "IQ3_S_WIDE": 1.0}
"""No types of files: what codebooks makes of those of one to three bits. By what their scale is to be multiplied."""

NIBBLES, PAIRED, SIXES, BYTES, PLAIN, AS_STORED = range(6)
"""Where a file has the numbers of a block; see `read`. Those AS_STORED are fields of the head and stay as they are."""


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a block: `count` elements of `size` bytes at byte `offset`."""

    offset: int
    size: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a block of `weights` weights, `size` bytes. `bits` of a number; `numbers`, `high`: bytes where the
    numbers, and their bits above the fourth, begin."""

    weights: int
    size: int
    head: tuple[Field, ...]
    bits: int = 0
    source: int = PLAIN
    numbers: int = 0
    high: int = 0

    @property
    def head_size(self) -> int:
        """Return the size of a block's head in bytes, per row."""
        return sum(field.size * field.count for field in self.head)

    def place(self, number: int, lanes: int) -> int:
        """Return the byte at which a field of the head begins in a panel's block."""
        return sum(field.size * field.count for field in self.head[:number]) * lanes


_SCALE, _MINIMUM = Field(0, 2), Field(2, 2)
_SIX_BITS = Field(4, 4, 3)

LAYOUTS = {
    "Q4_0": Layout(32, 18, (_SCALE,), 4, NIBBLES, 2),
    "Q4_1": Layout(32, 20, (_SCALE, _MINIMUM), 4, NIBBLES, 4),
    "Q5_0": Layout(32, 22, (_SCALE,), 5, NIBBLES, 6, 2),
    "Q5_1": Layout(32, 24, (_SCALE, _MINIMUM), 5, NIBBLES, 8, 4),
    "Q8_0": Layout(32, 34, (_SCALE,), 8, BYTES, 2),
    "MXFP4": Layout(32, 17, (Field(0, 1),), 4, NIBBLES, 1),
    "Q2_K": Layout(
        256, 84, (Field(80, 2), Field(82, 2), Field(0, 1, 16), Field(16, 4, 16)), source=AS_STORED
    ),
    "Q3_K": Layout(
        256, 110, (Field(108, 2), Field(96, 4, 3), Field(0, 4, 8), Field(32, 4, 16)), source=AS_STORED
    ),
    "Q4_K": Layout(256, 144, (_SCALE, _MINIMUM, _SIX_BITS), 4, PAIRED, 16),
    "Q5_K": Layout(256, 176, (_SCALE, _MINIMUM, _SIX_BITS), 5, PAIRED, 48, 16),
    "Q6_K": Layout(256, 210, (Field(208, 2), Field(192, 1, 16)), 6, SIXES, 0, 128),
    "IQ4_NL": Layout(32, 18, (_SCALE,), 4, NIBBLES, 2),
    "IQ4_XS": Layout(256, 136, (_SCALE, Field(2, 2), Field(4, 4)), 4, NIBBLES, 8),
    **{name: Layout(256, 146, (_SCALE, Field(2, 1, 16)), 4, NIBBLES, 18) for name in WIDE},
    "F16": Layout(1, 2, (Field(0, 2),)),
    "BF16": Layout(1, 2, (Field(0, 2),)),
    "F32": Layout(1, 4, (Field(0, 4),)),
}
"""By the name of the block type."""


# The numbers of 32 weights between a file's block and the words that the kernels read: in between, eight words of four
# bytes, in order. Packed, bit b of word w of 32 numbers means: 4 bits: word i holds numbers 4 i to 4 i + 3 in the low
# halves of its bytes, and 16 further on in the high ones; 5 bits: before them a word of the fifth bits, those of pair t
# (numbers 4 (t / 2) + t % 2 and two further on) at bits t and 16 + t; 6 bits: three words for every four, a byte each
# for three of them, and the fourth's bits two by two above.
kernel = Kernels(__file__)

LOW = np.uint32(0x0F0F0F0F)
ONES = np.uint32(0x01010101)
TWOS = np.uint32(0x03030303)


@kernel
def word(halves, at):  # type: ignore[no-untyped-def]
    """Return the word at byte `at`, an even one, of uint16 `halves`."""
    return np.uint32(np.uint32(halves[at // 2]) | (np.uint32(halves[at // 2 + 1]) << np.uint32(16)))


@kernel
def any_word(halves, at):  # type: ignore[no-untyped-def]
    """Return the word at any byte: blocks of MXFP4 have 17."""
    if at % 2 == 0:
        return word(halves, at)
    low, high = np.uint32(halves[at // 2]) >> np.uint32(8), np.uint32(halves[at // 2 + 2]) & np.uint32(0xFF)
    return np.uint32(low | (np.uint32(halves[at // 2 + 1]) << np.uint32(8)) | (high << np.uint32(24)))


@kernel
def put(halves, at, value):  # type: ignore[no-untyped-def]
    halves[at // 2] = np.uint16(value & np.uint32(0xFFFF))
    halves[at // 2 + 1] = np.uint16(value >> np.uint32(16))


@kernel
def put_anywhere(halves, at, value):  # type: ignore[no-untyped-def]
    """Write a word to any byte; an odd one's halves are zero where it goes."""
    if at % 2 == 0:
        put(halves, at, value)
    else:
        halves[at // 2] |= np.uint16((value & np.uint32(0xFF)) << np.uint32(8))
        halves[at // 2 + 1] |= np.uint16((value >> np.uint32(8)) & np.uint32(0xFFFF))
        halves[at // 2 + 2] |= np.uint16(value >> np.uint32(24))


@kernel
def read(source, row, at, numbers, high, block, out):  # type: ignore[no-untyped-def]
    """Read block `block` of 32 of the file's block at byte `at` of a row (uint16) into eight words."""
    if source == NIBBLES:
        for i in range(4):
            both = any_word(row, at + numbers + 16 * block + 4 * i)
            out[i] = both & LOW
            out[4 + i] = (both >> np.uint32(4)) & LOW
        if high:
            bits = word(row, at + high)
            for i in range(8):
                four = (bits >> np.uint32(4 * i)) & np.uint32(15)
                out[i] |= ((four * np.uint32(0x00204081)) & ONES) << np.uint32(4)
    elif source == PAIRED:  # two blocks share 32 bytes
        for i in range(8):
            both = word(row, at + numbers + 32 * (block // 2) + 4 * i)
            out[i] = (both >> np.uint32(4 * (block % 2))) & LOW
            if high:
                out[i] |= ((word(row, at + high + 4 * i) >> np.uint32(block)) & ONES) << np.uint32(4)
    elif source == BYTES:
        for i in range(8):
            out[i] = word(row, at + numbers + 4 * i)
    else:
        half, quarter = block // 4, block % 4
        for i in range(8):
            both = word(row, at + numbers + 64 * half + 32 * (quarter % 2) + 4 * i)
            two = word(row, at + high + 32 * half + 4 * i) >> np.uint32(2 * quarter)
            out[i] = ((both >> np.uint32(4 * (quarter // 2))) & LOW) | ((two & TWOS) << np.uint32(4))


@kernel
def write(source, row, at, numbers, high, block, given):  # type: ignore[no-untyped-def]
    """Write eight words where `read` has them; the row's bytes are zero before the first block is written."""
    if source == NIBBLES:
        bits = np.uint32(0)
        for i in range(8):
            five = (given[i] >> np.uint32(4)) & ONES
            bits |= (((five * np.uint32(0x10204080)) >> np.uint32(28)) & np.uint32(15)) << np.uint32(4 * i)
        for i in range(4):
            both = (given[i] & LOW) | ((given[4 + i] & LOW) << np.uint32(4))
            put_anywhere(row, at + numbers + 16 * block + 4 * i, both)
        if high:
            put(row, at + high, bits)
    elif source == PAIRED:
        for i in range(8):
            there = at + numbers + 32 * (block // 2) + 4 * i
            put(row, there, word(row, there) | ((given[i] & LOW) << np.uint32(4 * (block % 2))))
            if high:
                there = at + high + 4 * i
                put(row, there, word(row, there) | (((given[i] >> np.uint32(4)) & ONES) << np.uint32(block)))
    elif source == BYTES:
        for i in range(8):
            put(row, at + numbers + 4 * i, given[i])
    else:
        half, quarter = block // 4, block % 4
        for i in range(8):
            there = at + numbers + 64 * half + 32 * (quarter % 2) + 4 * i
            put(row, there, word(row, there) | ((given[i] & LOW) << np.uint32(4 * (quarter // 2))))
            there = at + high + 32 * half + 4 * i
            put(
                row, there, word(row, there) | (((given[i] >> np.uint32(4)) & TWOS) << np.uint32(2 * quarter))
            )


@kernel
def pack(bits, numbers, out):  # type: ignore[no-untyped-def]
    """Pack eight words of numbers into the words that lie in memory; return how many."""
    if bits == 8:
        for i in range(8):
            out[i] = numbers[i]
        return 8
    if bits == 6:
        for i in range(2):
            fourth = numbers[4 * i + 3]
            for part in range(3):
                above = (fourth >> np.uint32(2 * part)) & TWOS
                out[3 * i + part] = numbers[4 * i + part] | (above << np.uint32(6))
        return 6
    first = 0
    if bits == 5:
        fifth = np.uint32(0)
        for i in range(8):
            ones = (numbers[i] >> np.uint32(4)) & ONES
            fifth |= ((ones | (ones >> np.uint32(7))) & np.uint32(0x00030003)) << np.uint32(2 * i)
        out[0] = fifth
        first = 1
    for i in range(4):
        out[first + i] = (numbers[i] & LOW) | ((numbers[4 + i] & LOW) << np.uint32(4))
    return first + 4


@kernel
def unpack(bits, words, out):  # type: ignore[no-untyped-def]
    """Unpack words that `pack` packed into eight words of numbers."""
    if bits == 8:
        for i in range(8):
            out[i] = words[i]
        return
    if bits == 6:
        for i in range(2):
            fourth = np.uint32(0)
            for part in range(3):
                both = words[3 * i + part]
                out[4 * i + part] = both & np.uint32(0x3F3F3F3F)
                fourth |= ((both >> np.uint32(6)) & TWOS) << np.uint32(2 * part)
            out[4 * i + 3] = fourth
        return
    first = bits - 4
    for i in range(4):
        out[i] = words[first + i] & LOW
        out[4 + i] = (words[first + i] >> np.uint32(4)) & LOW
    if first:
        for i in range(8):
            two = (words[0] >> np.uint32(2 * i)) & np.uint32(0x00030003)
            out[i] |= ((two | (two << np.uint32(7))) & ONES) << np.uint32(4)


# Matrices of a file into panels (layouts) and rows of them back, compiled.
Raw = NDArray[np.uint8]
THREADS = 2
_LITTLE = 64
"""Panels below which a second thread is not worth its start."""


def interleave(name: str, raw: Raw, lanes: int, order: NDArray[np.int64] | None = None) -> Raw:
    """Interleave a file's rows, uint8 [rows, bytes of a row], as one piece of panels. `order`: which row goes where."""
    order = np.arange(len(raw)) if order is None else order
    row_bytes, panels = raw.shape[1], -(-len(order) // lanes)
    out = np.empty(panels * lanes * row_bytes, np.uint8)
    out[(len(order) // lanes) * lanes * row_bytes :] = 0
    # A row of MXFP4 may have an odd number of bytes
    raw = np.pad(raw, ((0, 0), (0, 1))) if row_bytes % 2 else np.ascontiguousarray(raw)
    cuts = np.linspace(0, panels, 4 * THREADS + 1 if panels > _LITTLE else 2).astype(int).tolist()

    def part(number: int) -> None:
        _interleave(
            raw, raw.view(np.uint16), order, *_tables(name), lanes, cuts[number], cuts[number + 1], out
        )

    part(0)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(part, range(1, len(cuts) - 1)))
    return out


def restore(name: str, data: Raw, lanes: int, rows: NDArray[np.int64], row_bytes: int) -> Raw:
    """Return some rows of panels as a file has them: uint8 [len(rows), row_bytes]."""
    out = np.zeros((len(rows), row_bytes + row_bytes % 2), np.uint8)
    _restore(data, rows, *_tables(name), lanes, out, out.view(np.uint16))
    return out[:, :row_bytes]


@cache
def _tables(name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the fields of the head, and the rest of a layout."""
    layout = LAYOUTS[name]
    fields = np.array([[f.offset, f.size, f.count] for f in layout.head], np.int64)
    rest = [layout.weights, layout.size, layout.bits, layout.source, layout.numbers, layout.high]
    return fields, np.array(rest, np.int64)


@kernel
def _interleave(raw, halves, order, fields, rest, lanes, first, last, out):  # type: ignore[no-untyped-def]
    """Write panels first .. last - 1; row r of the result is row order[r] of `raw`, which `halves` shows as uint16."""
    weights, size, bits, source, numbers, high = rest
    words = out.view(np.uint32)
    row_bytes = raw.shape[1] // size * size
    some, packed = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    for panel in range(first, last):
        begin = panel * lanes
        for lane in range(min(lanes, order.shape[0] - begin)):
            row, row_halves = raw[order[begin + lane]], halves[order[begin + lane]]
            for block in range(row_bytes // size):
                at = block * size
                to = begin * row_bytes + at * lanes
                for f in range(fields.shape[0]):
                    width = fields[f, 1]
                    for element in range(fields[f, 2]):
                        for byte in range(width):
                            out[to + lane * width + byte] = row[at + fields[f, 0] + element * width + byte]
                        to += lanes * width
                if bits:
                    place = to // 4 + lane
                    for number in range(weights // 32):
                        read(source, row_halves, at, numbers, high, number, some)
                        for i in range(pack(bits, some, packed)):
                            words[place] = packed[i]
                            place += lanes


@kernel
def _restore(data, rows, fields, rest, lanes, out, halves):  # type: ignore[no-untyped-def]
    """Write rows of panels into `out` [len(rows), bytes of a row], zeros before, which `halves` shows as uint16."""
    weights, size, bits, source, numbers, high = rest
    row_bytes = out.shape[1] // size * size
    some, packed = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    for index in range(rows.shape[0]):
        begin, lane = rows[index] // lanes * lanes, rows[index] % lanes
        for block in range(row_bytes // size):
            at = block * size
            source_at = begin * row_bytes + at * lanes
            for f in range(fields.shape[0]):
                width = fields[f, 1]
                for element in range(fields[f, 2]):
                    for byte in range(width):
                        out[index, at + fields[f, 0] + element * width + byte] = data[
                            source_at + lane * width + byte
                        ]
                    source_at += lanes * width
            for number in range(weights // 32 if bits else 0):
                for i in range(bits):  # 32 numbers of so many bits are so many words
                    place = source_at + 4 * (i * lanes + lane)
                    packed[i] = (
                        np.uint32(data[place])
                        | np.uint32(data[place + 1]) << np.uint32(8)
                        | np.uint32(data[place + 2]) << np.uint32(16)
                        | np.uint32(data[place + 3]) << np.uint32(24)
                    )
                unpack(bits, packed, some)
                write(source, halves[index], at, numbers, high, number, some)
                source_at += 4 * bits * lanes


# Weights in large pages. A forward reads every weight once; where pages of 4 KB lie in memory then takes as
# long to find as a quarter of the reading itself (docs/log.md).
SMALLEST = 32 * 2**20
"""Bytes. What is smaller stays in a processor's caches."""
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PIECE = 32 * 2**20


def in_large_pages(path: Path, begin: int, size: int) -> NDArray[np.uint8] | None:
    """Copy `size` bytes of a file from `begin` on into large pages; None if a mapping does as well.
    Raises OSError, or MemoryError."""
    try:
        if sys.platform != "linux" or size < SMALLEST or "[never]" in _SETTING.read_text():
            return None
    except OSError:
        return None
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones get none
    except OSError as error:
        raise MemoryError(f"no room for {size} bytes") from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    file = os.open(path, os.O_RDONLY)

    def copy(first: int) -> None:
        at, end = first, min(first + _PIECE, size)
        while at < end:
            count = os.preadv(file, [memoryview(memory)[at:end]], begin + at)
            if not count:
                raise OSError("it is cut off")
            at += count

    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(copy, range(0, size, _PIECE)))
    finally:
        os.close(file)
    return np.frombuffer(memory, np.uint8)
