"""Hold matrices of weights in blocks, as the CPU engine computes on them: interleaved (layouts), as floats, or packed.
Each weight has the float32 value of gguf's own reader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.layouts import LAYOUTS, LEVELS, WIDE, interleave, restore

Floats = NDArray[np.float32]
Raw = NDArray[np.uint8]
"""Blocks as they lie in a file: [rows, bytes of a row], or [rows, blocks, bytes of a block]."""


class UnknownBlockType(ValueError):
    """The CPU engine does not compute on this block type."""

    def __init__(self, name: str) -> None:
        super().__init__(f"block type {name} (known are {', '.join(sorted(TYPES))})")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Matrix of `rows` x `columns`; `name`: its block type. `data`: panels of `lanes` rows, uint8 in one piece."""

    name: str
    data: Raw
    rows: int
    columns: int
    lanes: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def row_bytes(self) -> int:
        layout = LAYOUTS[self.name]
        return self.columns // layout.weights * layout.size

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def is_whole(self) -> bool:
        """Tell whether the data are as long as the sizes say, in panels for this processor: kernels check no bounds."""
        from hierchat.jit import LANES

        panels, layout = -(-self.rows // LANES), LAYOUTS[self.name]
        sizes = type(self.rows) is int and type(self.columns) is int and min(self.shape) > 0
        fits = sizes and self.columns % layout.weights == 0 and self.lanes == LANES
        return fits and self.nbytes == panels * LANES * self.row_bytes

    def floats(self, rows: NDArray[np.int64] | None = None) -> Floats:
        """Return the weights of some rows or of all; float32 [rows, columns]. Raises ValueError for a row beyond."""
        some = np.arange(self.rows) if rows is None else rows
        if some.size and (some.min() < 0 or some.max() >= self.rows):
            raise ValueError(f"The matrix has {self.rows} rows: none is {some.max()}.")
        return floats_of(self.name, restore(self.name, self.data, self.lanes, some, self.row_bytes))

    def as_floats(self) -> "Blocks":
        return from_floats(self.floats())


MOST_KEPT = 2048
"""Rows that an Embedding keeps."""


class Embedding:
    """Return rows of a matrix as floats, and keep those of late: a text has the same tokens again and again."""

    def __init__(self, matrix: Blocks) -> None:
        self._matrix = matrix
        self._places: dict[int, int] = {}
        self._rows = np.zeros((MOST_KEPT, matrix.columns), np.float32)

    def __call__(self, rows: Sequence[int]) -> Floats:
        """Return float32 [rows, columns] of at most MOST_KEPT rows."""
        if missing := [row for row in dict.fromkeys(rows) if row not in self._places]:
            if len(self._places) + len(missing) > MOST_KEPT:
                self._places.clear()
                missing = list(dict.fromkeys(rows))
            begin = len(self._places)
            self._rows[begin : begin + len(missing)] = self._matrix.floats(np.array(missing, np.int64))
            self._places |= zip(missing, range(begin, begin + len(missing)), strict=True)
        return self._rows[[self._places[row] for row in rows]]


def from_file(name: str, raw: Raw, order: NDArray[np.int64] | None = None) -> Blocks:
    """Make a matrix from a file's rows, uint8 [rows, bytes of a row]; `order`: which of them goes where.
    Types with codebooks get the name and size of the wider form. Raises UnknownBlockType."""
    from hierchat.jit import LANES

    if name not in TYPES and name not in WIDE:
        raise UnknownBlockType(name)
    if name in NARROW:
        name, raw = widened(name, raw)
    layout = LAYOUTS[name]
    columns = raw.shape[1] // layout.size * layout.weights
    rows = len(raw) if order is None else len(order)
    return Blocks(name, interleave(name, raw, LANES, order), rows, columns, LANES)


def from_floats(weights: Floats) -> Blocks:
    """Make a matrix of floats [rows, columns] as they are."""
    return from_file("F32", np.ascontiguousarray(weights, np.float32).view(np.uint8))


def pack(weights: Floats, bits: int) -> Blocks:
    """Round floats [rows, columns] to blocks of 8 bits (scale) or 4 (scale and minimum)."""
    return from_file(*packed(weights, bits))


def floats_of(name: str, data: Raw) -> Floats:
    """Return a matrix of a file, uint8 [rows, bytes of a row], as float32 [rows, columns]. Raises UnknownBlockType."""
    if name in WIDE:
        # What codebooks made has a scale for each 16 weights.
        raw = data.reshape(len(data), -1, LAYOUTS[name].size)
        scale = np.ascontiguousarray(raw[..., :2]).view(np.float16).astype(np.float32)
        scales = np.float32(WIDE[name]) * scale * np.ascontiguousarray(raw[..., 2:18]).view(np.int8)
        nibbles = raw[..., 18:].reshape(*raw.shape[:-1], 8, 16)
        levels = np.array(LEVELS[name], np.float32)[np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)]
        return (scales[..., None] * levels.reshape(*scales.shape, 16)).reshape(len(data), -1)
    if name not in TYPES:
        raise UnknownBlockType(name)
    rows = np.ascontiguousarray(data)
    if name in ("F16", "F32"):
        return rows.view(np.float16 if name == "F16" else np.float32).astype(np.float32, copy=False)
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    return np.asarray(kind.dequantize_rows(rows), np.float32)


def mx_blocks(codes: Raw, scales: Raw) -> Raw:
    """Convert MXFP4 of safetensors, codes [..., blocks, 16] and scales, to GGUF's: uint8 [rows, 17 blocks]."""
    numbers = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    halves = numbers[..., :16] | numbers[..., 16:] << 4
    return np.concatenate([scales[..., None], halves], axis=-1).reshape(-1, 17 * scales.shape[-1])


def packed(weights: Floats, bits: int) -> tuple[str, Raw]:
    """Round floats [rows, columns] to blocks of 8 bits (Q8_0) or 4 (Q4_1): the type's name and its bytes."""
    parts = weights.reshape(len(weights), -1, 32)
    if bits == 8:
        scales = (np.abs(parts).max(axis=2, keepdims=True) / 127).astype(np.float16)
        numbers = np.clip(np.rint(parts / _divisor(scales)), -127, 127).astype(np.int8)
        return "Q8_0", _rows(scales, numbers)
    minimums = parts.min(axis=2, keepdims=True).astype(np.float16)
    scales = ((parts.max(axis=2, keepdims=True) - minimums) / 15).astype(np.float16)
    steps = (parts - minimums.astype(np.float32)) / _divisor(scales)
    nibbles = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    return "Q4_1", _rows(scales, minimums, nibbles[..., :16] | nibbles[..., 16:] << 4)


def _rows(*parts: NDArray[np.generic]) -> Raw:
    whole = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=2)
    return np.ascontiguousarray(whole).reshape(len(whole), -1)


def _divisor(scales: NDArray[np.float16]) -> Floats:
    return np.where(scales == 0, 1, scales).astype(np.float32)


# Block types of one to three bits in forms that the CPU engine computes on. No weight changes. Their numbers stand in
# codebooks: one code names eight weights, or four. Their scales are small whole numbers times one float16, and the
# weights of a type have at most sixteen levels (layouts.LEVELS). So they become blocks of 4 bits for each weight, with
# a scale for each 16: 146 bytes for 256 weights. Ternary types become Q2_K, 84 bytes.

Numbers = NDArray[np.integer[Any]]

_AT_ONCE = 1 << 20
"""Blocks that are widened at a time, for their memory's sake."""


def widened(name: str, rows: Raw) -> tuple[str, Raw]:
    """Return rows of one of NARROW, uint8 [rows, bytes of a row], as rows of a wider type, with its name."""
    size, (form, function) = NARROW[name]
    raw = rows.reshape(len(rows), -1, size)
    step = max(_AT_ONCE // raw.shape[1], 1)
    parts = [function(raw[first : first + step]) for first in range(0, len(raw), step)]
    return form, np.concatenate(parts).reshape(len(rows), -1)


def widening(name: str) -> float:
    """Return the factor by which a tensor of a file grows in memory."""
    if name not in NARROW:
        return 1.0
    size, (form, _) = NARROW[name]
    return LAYOUTS[form].size / size


@cache
def _codebook(name: str) -> NDArray[np.uint64] | NDArray[np.uint32]:
    """Return the numbers that each code of a codebook stands for: its levels, by their size, a byte each."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    numbers = np.searchsorted(kind.grid_map, kind.grid[0, 0]).astype(np.uint8)
    return numbers.view(np.uint64 if numbers.shape[1] == 8 else np.uint32)[:, 0]


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_SIGNS: NDArray[np.uint64] = (_BITS << 3).view(np.uint64)[:, 0]
"""By eight bits of sign: the eighth number of each weight that is negative."""
_EVEN: NDArray[np.uint64] = _SIGNS[np.arange(128) | (_BITS[:128].sum(axis=1) % 2).astype(int) << 7]
"""Signs of eight weights by the bits of the first seven: an even number of them is negative."""


def _words(raw: Raw, kind: str) -> Numbers:
    return np.ascontiguousarray(raw).view(kind).astype(np.uint32)


def _parts(raw: Numbers, *shifts: int) -> Numbers:
    found = raw.astype(np.uint32)[..., None] >> np.array(shifts, np.uint32)
    return found.reshape(*raw.shape[:-1], -1)


def _blocks(scale: Raw, scales: Numbers, codes: NDArray[np.uint64]) -> Raw:
    """Make blocks of 146 bytes. `scale`: two bytes; `scales`: 16, or one for two of them, as (factor - 1) / 2;
    `codes`: eight numbers from 0 to 15, a byte each, [rows, blocks, 32]."""
    twice = scales if scales.shape[-1] == 16 else np.repeat(scales, 2, axis=-1)
    numbers = codes.view(np.uint8).reshape(*codes.shape[:-1], 8, 32)
    packed = (numbers[..., :16] | numbers[..., 16:] << 4).reshape(*codes.shape[:-1], 128)
    return np.concatenate([scale, (2 * twice + 1).astype(np.uint8), packed], axis=-1)


def _iq2_xxs(raw: Raw) -> Raw:
    pairs = np.ascontiguousarray(raw[..., 2:]).reshape(*raw.shape[:-1], 8, 8)
    words = _words(pairs[..., 4:], "<u4")[..., 0]  # a scale above, four times seven bits of sign below
    codes = _codebook("IQ2_XXS")[pairs[..., :4].reshape(*raw.shape[:-1], 32)]
    return _blocks(raw[..., :2], words >> 28, codes | _EVEN[_parts(words, 0, 7, 14, 21) & 127])


def _iq2_xs(raw: Raw) -> Raw:
    words = _words(raw[..., 2:66], "<u2")
    codes = _codebook("IQ2_XS")[words & 511] | _EVEN[words >> 9]
    return _blocks(raw[..., :2], _parts(raw[..., 66:], 0, 4) & 15, codes)


def _iq2_s(raw: Raw) -> Raw:
    high = _parts(raw[..., 66:74], 0, 2, 4, 6) & 3
    codes = _codebook("IQ2_S")[raw[..., 2:34] | high << 8] | _SIGNS[raw[..., 34:66]]
    return _blocks(raw[..., :2], _parts(raw[..., 74:], 0, 4) & 15, codes)


def _iq3_xxs(raw: Raw) -> Raw:
    words = _words(raw[..., 66:], "<u4")
    codes = _codebook("IQ3_XXS")[raw[..., 2:66]].view(np.uint64)
    return _blocks(raw[..., :2], words >> 28, codes | _EVEN[_parts(words, 0, 7, 14, 21) & 127])


def _iq3_s(raw: Raw) -> Raw:
    high = _parts(raw[..., 66:74], *range(8)) & 1
    codes = _codebook("IQ3_S")[raw[..., 2:66] | high << 8].view(np.uint64)
    return _blocks(raw[..., :2], _parts(raw[..., 106:], 0, 4) & 15, codes | _SIGNS[raw[..., 74:106]])


def _iq1_s(raw: Raw) -> Raw:
    # Here the eighth number says that weights stand an eighth of their scale lower, not higher
    words = _words(raw[..., 34:], "<u2")
    codes = _codebook("IQ1_S")[raw[..., 2:34] | (_parts(words, 0, 3, 6, 9) & 7) << 8]
    lower = np.repeat(words >> 15, 4, axis=-1)
    return _blocks(raw[..., :2], words >> 12 & 7, codes | _SIGNS[lower * 255])


def _iq1_m(raw: Raw) -> Raw:
    # As IQ1_S, for every eight weights; the float16 lies in the highest bits of four words of scales
    words, high = _words(raw[..., 48:], "<u2"), _parts(raw[..., 32:48], 0, 4)
    codes = _codebook("IQ1_S")[raw[..., :32] | (high & 7) << 8]
    scale = (words >> 12 << np.array([0, 4, 8, 12], np.uint32)).sum(axis=-1, keepdims=True).astype("<u2")
    return _blocks(scale.view(np.uint8), _parts(words, 0, 3, 6, 9) & 7, codes | _SIGNS[(high >> 3 & 1) * 255])


def _ternary(scale: Raw, packed: Raw) -> Raw:
    ones = np.full((*scale.shape[:-1], 16), 0x11, np.uint8)
    return np.concatenate([ones, packed, scale, scale], axis=-1)


def _tq1_0(raw: Raw) -> Raw:
    # Five numbers in a byte of digits to base three; in the last four bytes, four
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]

    def digits(first: int, last: int, count: int) -> Raw:
        shifted = raw[..., None, first:last] * powers[:count]
        return (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(*raw.shape[:-1], -1)

    numbers = np.concatenate([digits(0, 32, 5), digits(32, 48, 5), digits(48, 52, 4)], axis=-1)
    fours = numbers.reshape(*raw.shape[:-1], 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = np.bitwise_or.reduce(fours, axis=-2).reshape(*raw.shape[:-1], 64)
    return _ternary(raw[..., 52:], packed)


NARROW: dict[str, tuple[int, tuple[str, Callable[[Raw], Raw]]]] = {
    "IQ1_S": (50, ("IQ1_WIDE", _iq1_s)),
    "IQ1_M": (56, ("IQ1_WIDE", _iq1_m)),
    "IQ2_XXS": (66, ("IQ2_WIDE", _iq2_xxs)),
    "IQ2_XS": (74, ("IQ2_WIDE", _iq2_xs)),
    "IQ2_S": (82, ("IQ2_WIDE", _iq2_s)),
    "IQ3_XXS": (98, ("IQ3_WIDE", _iq3_xxs)),
    "IQ3_S": (110, ("IQ3_S_WIDE", _iq3_s)),
    "TQ1_0": (54, ("Q2_K", _tq1_0)),
    "TQ2_0": (66, ("Q2_K", lambda raw: _ternary(raw[..., 64:], raw[..., :64]))),
}
"""By name: bytes of a block, the wider type, and what makes blocks of it."""
TYPES = frozenset(LAYOUTS) - frozenset(WIDE) | frozenset(NARROW)
"""Block types of files, by gguf's names."""
