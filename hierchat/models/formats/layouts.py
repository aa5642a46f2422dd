"""Lay the blocks of a GGUF file out in memory: rows interleaved, so that a register holds one place of many rows.
A panel is `lanes` rows. Of each block it holds the head (scales), field by field, for all rows side by side; then for
each 32 weights their numbers in words of 32 bits, packed as below. The size stays that of the file, plus rows of
zeros in the last panel."""

import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
"""Where a file has the numbers of a block (see `numbers_of`). Those AS_STORED are fields of the head."""


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


# Blocks between a file and memory. Packed, 32 numbers are words of 32 bits: of 4 bits, a byte has number i and number
# i + 16; of 5 bits, a word of the fifth bits comes before these, those of pair t (numbers 4 (t / 2) + t % 2 and two
# further on) at bits t and 16 + t; of 6 bits, three words of every four come with two bits each of the fourth above.
Raw = NDArray[np.uint8]
LOW, LOW_SIX, ONES, TWOS, PAIR = map(np.uint32, (0x0F0F0F0F, 0x3F3F3F3F, 0x01010101, 0x03030303, 0x00030003))
_PAIRS = 2 * np.arange(8, dtype=np.uint32)
_BITS = np.arange(8, dtype=np.uint8)
_AT_ONCE = 1 << 20
"""Bytes that are interleaved at a time, so that they stay in the caches."""
THREADS = 2


def numbers_of(layout: Layout, blocks: Any, shifts: Any = _BITS, library: Any = np) -> Any:
    """Return the numbers of a file's blocks, uint8 [..., bytes of a block], as [..., blocks of 32, 32]. `library`: that
    of the arrays, numpy or torch; `shifts`: its numbers from 0 to 7."""
    shape, count = blocks.shape[:-1], layout.weights // BLOCK
    behind = blocks[..., layout.numbers :]
    if layout.source == BYTES:
        return behind[..., : layout.weights].reshape(*shape, count, BLOCK)
    # So many bytes have their lower halves before their upper ones.
    run = {NIBBLES: 16, PAIRED: 32, SIXES: 64}[layout.source]
    both = behind[..., : layout.weights // 2].reshape(*shape, -1, 1, run)
    numbers = library.concatenate([both & 15, both >> 4], axis=-2).reshape(*shape, count, BLOCK)
    above = blocks[..., layout.high : layout.high + (layout.bits - 4) * layout.weights // 8]
    if layout.source == SIXES:
        return (
            numbers | (above.reshape(*shape, 2, 1, 32) >> shifts[::2, None] & 3).reshape(*shape, 8, 32) << 4
        )
    if layout.bits == 5:
        ones = (
            above[..., None] >> shifts if layout.source == NIBBLES else above[..., None, :] >> shifts[:, None]
        )
        return numbers | (ones & 1).reshape(*shape, count, BLOCK) << 4
    return numbers


def _put_numbers(layout: Layout, numbers: Raw, blocks: Raw) -> None:
    """Write numbers into a file's blocks, where `numbers_of` finds them."""
    shape = blocks.shape[:-1]
    behind = blocks[..., layout.numbers :]
    if layout.source == BYTES:
        behind[..., : layout.weights] = numbers.reshape(*shape, -1)
        return
    run = {NIBBLES: 16, PAIRED: 32, SIXES: 64}[layout.source]
    halves = (numbers & 15).reshape(*shape, -1, 2, run)
    behind[..., : layout.weights // 2] = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*shape, -1)
    above = blocks[..., layout.high : layout.high + (layout.bits - 4) * layout.weights // 8]
    if layout.source == SIXES:
        twos = (numbers >> 4).reshape(*shape, 2, 4, 32)
        both = twos[..., :2, :] | twos[..., 2:, :] << 4
        above[:] = (both[..., 0, :] | both[..., 1, :] << 2).reshape(*shape, -1)
    elif layout.bits == 5:
        axis = -1 if layout.source == NIBBLES else -2
        above[:] = np.packbits(numbers >> 4, axis=axis, bitorder="little").reshape(*shape, -1)


def _packed(bits: int, numbers: Raw) -> Raw:
    """Pack numbers, [..., 32], into the words that lie in memory, [..., 4 * bits] bytes."""
    if bits == 8:
        return numbers
    words = np.ascontiguousarray(numbers).view(np.uint32)
    if bits == 6:
        fours, found = words.reshape(*words.shape[:-1], 2, 4), np.empty((*words.shape[:-1], 2, 3), np.uint32)
        for part in range(3):
            found[..., part] = fours[..., part] | (fours[..., 3] >> 2 * part & TWOS) << 6
        return found.reshape(*words.shape[:-1], 6).view(np.uint8)
    halves = words[..., :4] & LOW | (words[..., 4:] & LOW) << 4
    if bits == 5:
        ones = words >> 4 & ONES
        fifths = np.bitwise_or.reduce(((ones | ones >> 7) & PAIR) << _PAIRS, axis=-1, keepdims=True)
        halves = np.concatenate([fifths, halves], axis=-1)
    return halves.view(np.uint8)


def _unpacked(bits: int, packed: Raw) -> Raw:
    """Return the numbers that `_packed` packed."""
    if bits == 8:
        return packed
    words = np.ascontiguousarray(packed).view(np.uint32)
    if bits == 6:
        three, found = words.reshape(*words.shape[:-1], 2, 3), np.empty((*words.shape[:-1], 2, 4), np.uint32)
        found[..., :3], above = three & LOW_SIX, three >> 6 & TWOS
        found[..., 3] = above[..., 0] | above[..., 1] << 2 | above[..., 2] << 4
        return found.reshape(*words.shape[:-1], 8).view(np.uint8)
    halves = words[..., -4:]
    numbers = np.concatenate([halves & LOW, halves >> 4 & LOW], axis=-1)
    if bits == 5:
        pairs = words[..., :1] >> _PAIRS & PAIR
        numbers |= ((pairs | pairs << 7) & ONES) << 4
    return numbers.view(np.uint8)


def interleave(name: str, raw: Raw, lanes: int, order: NDArray[np.int64] | None = None) -> Raw:
    """Interleave a file's rows, uint8 [rows, bytes of a row], as one piece of panels. `order`: which row goes where."""
    layout, order = LAYOUTS[name], np.arange(len(raw)) if order is None else order
    panels, blocks = -(-len(order) // lanes), raw.shape[1] // layout.size
    out = np.empty((panels, blocks, layout.size * lanes), np.uint8)

    def part(first: int) -> None:
        goal, rows = out[first : first + step], raw[order[first * lanes : (first + step) * lanes]]
        rows = np.pad(rows, ((0, len(goal) * lanes - len(rows)), (0, 0)))
        parts = rows.reshape(len(goal), lanes, blocks, layout.size)
        at = 0
        for field in layout.head:
            piece = parts[..., field.offset : field.offset + field.size * field.count]
            at = place(goal, at, piece, field.size)
        if layout.bits:
            words = _packed(layout.bits, numbers_of(layout, parts))
            place(goal, at, words.reshape(*parts.shape[:3], -1), 4)

    def place(goal: Raw, at: int, piece: Raw, width: int) -> int:
        """Put elements of `width` bytes side by side for all rows of a panel."""
        elements, end = piece.view(f"u{width}").transpose(0, 2, 3, 1), at + piece.shape[-1] * lanes
        goal[..., at:end].view(f"u{width}").reshape(elements.shape)[:] = elements
        return end

    step = max(_AT_ONCE // (raw.shape[1] * lanes), 1)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(part, range(0, panels, step)))
    return out.reshape(-1)


def restore(name: str, data: Raw, lanes: int, rows: NDArray[np.int64], row_bytes: int) -> Raw:
    """Return some rows of panels as a file has them: uint8 [len(rows), row_bytes]."""
    layout, count = LAYOUTS[name], row_bytes // LAYOUTS[name].size
    panels = data.reshape(-1, count, layout.size * lanes)
    (panel, lane), at = np.divmod(rows, lanes), 0

    def piece(size: int, width: int) -> Raw:
        """Return the next `size` bytes of each row's blocks, whose elements have `width` bytes."""
        nonlocal at
        begin, at = at, at + size * lanes
        elements = panels[..., begin:at].view(f"u{width}").reshape(len(panels), count, size // width, lanes)
        return elements[panel, :, :, lane].view(np.uint8)

    out = np.zeros((len(rows), count, layout.size), np.uint8)
    for field in layout.head:
        size = field.size * field.count
        out[..., field.offset : field.offset + size] = piece(size, field.size)
    if layout.bits:
        words = piece(layout.weights * layout.bits // 8, 4)
        words = words.reshape(len(rows), count, layout.weights // BLOCK, 4 * layout.bits)
        _put_numbers(layout, _unpacked(layout.bits, words), out)
    return out.reshape(len(rows), row_bytes)


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
