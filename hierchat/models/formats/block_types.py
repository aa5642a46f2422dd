"""The block types of GGUF files, unpacked into the few kinds that the CPU engine computes on.

Layouts as ggml defines them. Nothing is rounded: a weight has the value that the file gives it, to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.quantised_blocks import BlockKind, Blocks

Raw = NDArray[np.uint8]
"""The blocks of a matrix as they lie in the file: [rows, blocks, bytes of a block]."""
Floats = NDArray[np.float32]


Halves = NDArray[np.float16]


def _half(raw: Raw, at: int) -> Halves:
    """The float16 at byte `at` of each block, [rows, blocks]."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16)[..., 0]


def _pairs(scales: NDArray[Any], minimums: NDArray[Any]) -> NDArray[Any]:
    """Each block's scale and minimum side by side, [rows, 2 blocks]."""
    return np.stack([scales, minimums], axis=-1).reshape(len(scales), -1)


def _flat(numbers: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Weights of a row in one piece, as bytes."""
    return np.ascontiguousarray(numbers).reshape(len(numbers), -1).view(np.uint8)


def _nibbles(packed: Raw) -> Raw:
    """16 bytes -> 32 numbers, the low halves first; the last axis doubles."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _high_bits(raw: Raw, at: int) -> Raw:
    """The fifth bits of 32 weights, from four bytes."""
    bits = np.ascontiguousarray(raw[..., at : at + 4]).view("<u4")
    return ((bits >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << np.uint8(4)


def _q4_0(raw: Raw) -> Blocks:
    scales = _half(raw, 0)
    return Blocks(BlockKind.NIBBLES, _flat(raw[..., 2:]), _pairs(scales, np.float16(-8) * scales))


def _q4_1(raw: Raw) -> Blocks:
    return Blocks(BlockKind.NIBBLES, _flat(raw[..., 4:]), _pairs(_half(raw, 0), _half(raw, 2)))


def _q5_0(raw: Raw) -> Blocks:
    numbers = (_nibbles(raw[..., 6:]) | _high_bits(raw, 2)).astype(np.int8) - 16
    return Blocks(BlockKind.BYTES, _flat(numbers), _half(raw, 0))


def _q5_1(raw: Raw) -> Blocks:
    numbers = _nibbles(raw[..., 8:]) | _high_bits(raw, 4)
    return Blocks(BlockKind.LIFTED, _flat(numbers), _pairs(_half(raw, 0), _half(raw, 2)))


def _q8_0(raw: Raw) -> Blocks:
    return Blocks(BlockKind.BYTES, _flat(raw[..., 2:]), _half(raw, 0))


def _k_scales(raw: Raw) -> Floats:
    """Scales and minimums of Q4_K and Q5_K: 6 bits each for eight blocks of 32, times two float16."""
    packed = raw[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    wide, low = (_half(raw, at).astype(np.float32)[..., None] for at in (0, 2))
    shape = (len(raw), -1)
    return _pairs((wide * scales).reshape(shape), -(low * minimums).reshape(shape))


def _k_nibbles(packed: Raw) -> Raw:
    """128 bytes -> 256 numbers: of every 32 bytes the low halves, then the high ones; [rows, blocks, 8, 32]."""
    parts = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=-2).reshape(*packed.shape[:-1], 8, 32)


def _q4_k(raw: Raw) -> Blocks:
    numbers = _k_nibbles(raw[..., 16:])
    return Blocks(BlockKind.NIBBLES_WIDE, _flat(numbers[..., :16] | numbers[..., 16:] << 4), _k_scales(raw))


def _q5_k(raw: Raw) -> Blocks:
    high = raw[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return Blocks(BlockKind.LIFTED_WIDE, _flat(_k_nibbles(raw[..., 48:]) | high << 4), _k_scales(raw))


def _q6_k(raw: Raw) -> Blocks:
    packed = raw[..., :128].reshape(*raw.shape[:-1], 2, 1, 64)
    low = np.concatenate([packed & 15, packed >> 4], axis=-2).reshape(*raw.shape[:-1], 2, 4, 32)
    bits = raw[..., 128:192].reshape(*raw.shape[:-1], 2, 1, 32)
    high = bits >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    numbers = (low | high << 4).astype(np.int8) - 32
    parts = np.ascontiguousarray(raw[..., 192:208]).view(np.int8)
    scales = (_half(raw, 208).astype(np.float32)[..., None] * parts).reshape(len(raw), -1)
    return Blocks(BlockKind.SPLIT, _flat(numbers), scales)


def _plain(kind: BlockKind) -> Callable[[Raw], Blocks]:
    return lambda raw: Blocks(kind, _flat(raw))


TYPES: dict[str, tuple[int, Callable[[Raw], Blocks]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q4_K": (144, _q4_k),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "Q8_0": (34, _q8_0),
    "F16": (2, _plain(BlockKind.HALF)),
    "BF16": (2, _plain(BlockKind.BFLOAT)),
    "F32": (4, _plain(BlockKind.SINGLE)),
}
"""By name: bytes of a block, and what unpacks them."""


class UnknownBlockType(ValueError):
    """A block type that the CPU engine does not compute on."""


def unpack(name: str, data: Raw) -> Blocks:
    """A matrix of a file: `data` uint8 [rows, bytes of a row]. Raises UnknownBlockType."""
    if name not in TYPES:
        raise UnknownBlockType(f"block type {name} (known are {', '.join(TYPES)})")
    size, function = TYPES[name]
    return function(data.reshape(len(data), -1, size))


def pack(weights: Floats, bits: int) -> Blocks:
    """Floats [rows, columns] rounded to blocks of 8 bits (scale) or 4 (scale and minimum)."""
    parts = weights.reshape(len(weights), -1, 32)
    if bits == 8:
        scales = (np.abs(parts).max(axis=2) / 127).astype(np.float16)
        numbers = np.clip(np.rint(parts / _divisor(scales)), -127, 127)
        return Blocks(BlockKind.BYTES, _flat(numbers.astype(np.int8)), scales)
    minimums = parts.min(axis=2).astype(np.float16)
    scales = ((parts.max(axis=2) - minimums) / 15).astype(np.float16)
    numbers = np.rint((parts - minimums.astype(np.float32)[..., None]) / _divisor(scales))
    packed = np.clip(numbers, 0, 15).astype(np.uint8)
    halves = packed[..., :16] | packed[..., 16:] << 4
    return Blocks(BlockKind.NIBBLES, _flat(halves), _pairs(scales, minimums))


def _divisor(scales: Halves) -> Floats:
    return np.where(scales == 0, 1, scales).astype(np.float32)[..., None]
