"""Matrices of weights as the CPU engine computes on them: the blocks of a file, rows interleaved (layouts)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.block_types import TYPES, UnknownBlockType, floats_of, packed
from hierchat.models.formats.codebooks import NARROW, widened
from hierchat.models.formats.layouts import LAYOUTS

Floats = NDArray[np.float32]
Raw = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of `rows` x `columns`; `name`: its block type. `data`: panels of `lanes` rows, uint8 in one piece."""

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
    def file_bytes(self) -> int:
        """Bytes of the matrix in a file of this type: without the rows that fill up its last panel."""
        return self.rows * self.row_bytes

    def floats(self, rows: NDArray[np.int64] | None = None) -> Floats:
        """The weights themselves, of some rows or of all; float32 [rows, columns]."""
        from hierchat.models.formats.layouts import restore

        some = np.arange(self.rows) if rows is None else rows
        return floats_of(self.name, restore(self.name, self.data, self.lanes, some, self.row_bytes))

    def as_floats(self) -> Blocks:
        """The same matrix with float32 weights."""
        return from_floats(self.floats())


def from_file(name: str, raw: Raw, order: NDArray[np.int64] | None = None) -> Blocks:
    """A matrix as a file has it: uint8 [rows, bytes of a row]; `order`: which of its rows goes where. What codebooks
    widens has the name and the size of the wider form. Raises UnknownBlockType."""
    from hierchat.jit import LANES
    from hierchat.models.formats.layouts import interleave

    if name not in TYPES:
        raise UnknownBlockType(name)
    if name in NARROW:
        name, raw = widened(name, raw)
    layout = LAYOUTS[name]
    columns = raw.shape[1] // layout.size * layout.weights
    rows = len(raw) if order is None else len(order)
    return Blocks(name, interleave(name, raw, LANES, order), rows, columns, LANES)


def from_floats(weights: Floats) -> Blocks:
    """Floats [rows, columns] as they are."""
    return from_file("F32", np.ascontiguousarray(weights, np.float32).view(np.uint8))


def pack(weights: Floats, bits: int) -> Blocks:
    """Floats [rows, columns] rounded to blocks of 8 bits (scale) or 4 (scale and minimum)."""
    return from_file(*packed(weights, bits))
