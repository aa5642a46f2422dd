"""How the blocks of a GGUF file lie in memory: rows interleaved, so that a register holds the same place of many rows.

A panel is `lanes` rows. Of a block of the file it holds, in this order: the head (scales), field by field, each element
for all rows side by side; then for each 32 weights their numbers in words of 32 bits, word by word for all rows. The
numbers are put together anew, so that few instructions take them apart (words.pack), but none is widened: a matrix has
the size that it has in the file, but for its last panel, which is filled up with rows of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 3
"""A new number for every change of what stands here or in words: it remakes every cache."""

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
"""What the numbers of some block types stand for. Those of MXFP4, twice as large as meant, are a sign, two bits of
exponent and one of mantissa."""

WIDE = {"IQ1_WIDE": 0.125, "IQ2_WIDE": 0.125, "IQ3_WIDE": 0.25, "IQ3_S_WIDE": 1.0}
"""No types of files: what codebooks makes of those of one to three bits. By what their scale is to be multiplied."""

NIBBLES, PAIRED, SIXES, BYTES, PLAIN, AS_STORED = range(6)
"""Where a file has the numbers of a block; see words.read. Those AS_STORED are fields of the head: words of the file
that stay as they are."""


@dataclass(frozen=True, slots=True)
class Field:
    """`count` elements of `size` bytes at byte `offset` of a block."""

    offset: int
    size: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A block of `weights` weights, `size` bytes in the file and in memory.

    `bits` of a number; `numbers`: the byte where they begin; `high`: where the bits above the fourth begin.
    """

    weights: int
    size: int
    head: tuple[Field, ...]
    bits: int = 0
    source: int = PLAIN
    numbers: int = 0
    high: int = 0

    @property
    def head_size(self) -> int:
        """Bytes per row."""
        return sum(field.size * field.count for field in self.head)

    def place(self, number: int, lanes: int) -> int:
        """Byte at which a field of the head begins in a panel's block."""
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
