"""Matrices of weights as the CPU engine computes on them: blocks of 32 with a scale, or plain floats."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Weights to a scale."""


class Kind(IntEnum):
    """How the weights lie in memory. Every block type of a file becomes one of these (block_types)."""

    NIBBLES = 0
    """4 bits: the first 16 weights of a block in the low halves of its 16 bytes; scale and minimum per block."""
    BYTES = 1
    """8 bits, signed; scale per block."""
    LIFTED = 2
    """8 bits, signed; scale and minimum per block."""
    SPLIT = 3
    """8 bits, signed; two scales per block, for 16 weights each."""
    HALF = 4
    """float16."""
    BFLOAT = 5
    """bfloat16."""
    SINGLE = 6
    """float32."""


QUANTISED = (Kind.NIBBLES, Kind.BYTES, Kind.LIFTED, Kind.SPLIT)
MINIMUM = (Kind.NIBBLES, Kind.LIFTED)
BYTES_PER_BLOCK = {
    Kind.NIBBLES: 16,
    Kind.BYTES: 32,
    Kind.LIFTED: 32,
    Kind.SPLIT: 32,
    Kind.HALF: 64,
    Kind.BFLOAT: 64,
    Kind.SINGLE: 128,
}
SCALES_PER_BLOCK = {Kind.NIBBLES: 1, Kind.BYTES: 1, Kind.LIFTED: 1, Kind.SPLIT: 2}


def _nothing() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, columns]. weights uint8 [rows, columns / 32 * BYTES_PER_BLOCK]; scales float32 [rows, blocks]
    or [rows, 2 blocks]; minimums float32 [rows, blocks]: a weight is scale * number + minimum."""

    kind: Kind
    weights: NDArray[np.uint8]
    scales: NDArray[np.float32] = field(default_factory=_nothing)
    minimums: NDArray[np.float32] = field(default_factory=_nothing)

    @property
    def shape(self) -> tuple[int, int]:
        rows, size = self.weights.shape
        return rows, size // BYTES_PER_BLOCK[self.kind] * BLOCK

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + self.scales.nbytes + self.minimums.nbytes

    def take(self, rows: NDArray[np.int64]) -> Blocks:
        """Some rows, in that order."""
        return Blocks(
            self.kind,
            np.ascontiguousarray(self.weights[rows]),
            np.ascontiguousarray(self.scales[rows]) if self.scales.size else self.scales,
            np.ascontiguousarray(self.minimums[rows]) if self.minimums.size else self.minimums,
        )

    def floats(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The weights themselves, of some rows or of all; float32 [rows, columns]."""
        some = slice(None) if rows is None else rows
        raw = np.ascontiguousarray(self.weights[some])
        if self.kind is Kind.SINGLE:
            return raw.view(np.float32)
        if self.kind is Kind.HALF:
            return raw.view(np.float16).astype(np.float32)
        if self.kind is Kind.BFLOAT:
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        if self.kind is Kind.NIBBLES:
            pairs = raw.reshape(len(raw), -1, 16)
            numbers = np.concatenate([pairs & 15, pairs >> 4], axis=2).astype(np.float32)
        else:
            width = BLOCK // SCALES_PER_BLOCK[self.kind]
            numbers = raw.view(np.int8).reshape(len(raw), -1, width).astype(np.float32)
        numbers *= self.scales[some][..., None]
        if self.minimums.size:
            numbers += self.minimums[some][..., None]
        return numbers.reshape(len(raw), -1)
