"""Matrices of weights as the CPU engine computes on them: blocks of 32 with scales, or plain floats."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Weights in a block."""


class BlockKind(IntEnum):
    """How the weights lie in memory. Every block type of a file becomes one of these (block_types)."""

    NIBBLES = 0
    """4 bits: the first 16 weights of a block in the low halves of its 16 bytes; scale and minimum, float16."""
    NIBBLES_WIDE = 1
    """The same; scale and minimum float32."""
    BYTES = 2
    """8 bits, signed; scale, float16."""
    LIFTED = 3
    """8 bits, signed; scale and minimum, float16."""
    LIFTED_WIDE = 4
    """The same; scale and minimum float32."""
    SPLIT = 5
    """8 bits, signed; a scale for each half of a block, float32."""
    HALF = 6
    """float16."""
    BFLOAT = 7
    """bfloat16."""
    SINGLE = 8
    """float32."""


QUANTISED = tuple(kind for kind in BlockKind if kind < BlockKind.HALF)
FOUR_BITS = (BlockKind.NIBBLES, BlockKind.NIBBLES_WIDE)
MINIMUM = (*FOUR_BITS, BlockKind.LIFTED, BlockKind.LIFTED_WIDE)
NARROW = (BlockKind.NIBBLES, BlockKind.BYTES, BlockKind.LIFTED)
"""Kinds with float16 scales."""
BYTES_PER_BLOCK = {
    **dict.fromkeys(QUANTISED, 32),
    **dict.fromkeys(FOUR_BITS, 16),
    BlockKind.HALF: 64,
    BlockKind.BFLOAT: 64,
    BlockKind.SINGLE: 128,
}
SCALES_PER_BLOCK = {kind: 1 if kind is BlockKind.BYTES else 2 for kind in QUANTISED}


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [rows, columns]. weights uint8 [rows, columns / 32 * BYTES_PER_BLOCK]; scales float16 or float32
    [rows, columns / 32 * SCALES_PER_BLOCK]: of each block its scale and its minimum (a weight is scale * number +
    minimum), or its two scales."""

    kind: BlockKind
    weights: NDArray[np.uint8]
    scales: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @property
    def shape(self) -> tuple[int, int]:
        rows, size = self.weights.shape
        return rows, size // BYTES_PER_BLOCK[self.kind] * BLOCK

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + self.scales.nbytes

    def take(self, rows: NDArray[np.int64]) -> Blocks:
        """Some rows, in that order."""
        scales = np.ascontiguousarray(self.scales[rows]) if self.scales.size else self.scales
        return Blocks(self.kind, np.ascontiguousarray(self.weights[rows]), scales)

    def as_floats(self) -> Blocks:
        """The same matrix with float32 weights."""
        floats = np.ascontiguousarray(self.floats())
        return Blocks(BlockKind.SINGLE, floats.view(np.uint8))

    def floats(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The weights themselves, of some rows or of all; float32 [rows, columns]."""
        some = slice(None) if rows is None else rows
        raw = np.ascontiguousarray(self.weights[some])
        if self.kind is BlockKind.SINGLE:
            return raw.view(np.float32)
        if self.kind is BlockKind.HALF:
            return raw.view(np.float16).astype(np.float32)
        if self.kind is BlockKind.BFLOAT:
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        scales = self.scales[some].astype(np.float32)
        if self.kind in FOUR_BITS:
            pairs = raw.reshape(len(raw), -1, 16)
            numbers = np.concatenate([pairs & 15, pairs >> 4], axis=2).astype(np.float32)
        else:
            width = BLOCK // 2 if self.kind is BlockKind.SPLIT else BLOCK
            numbers = raw.view(np.int8).reshape(len(raw), -1, width).astype(np.float32)
        if self.kind in MINIMUM:
            numbers *= scales[:, 0::2, None]
            numbers += scales[:, 1::2, None]
        else:
            numbers *= scales[..., None]
        return numbers.reshape(len(raw), -1)
