"""The block types of GGUF files as floats, and floats as blocks.

Layouts as ggml defines them. Nothing is rounded: a weight has the value that the file gives it, to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hierchat.models.formats.codebooks import NARROW, Raw, widened
from hierchat.models.formats.layouts import LEVELS, WIDE

Floats = NDArray[np.float32]


def _half(raw: Raw, at: int) -> Floats:
    """The float16 at byte `at` of each block, [rows, blocks, 1]."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Raw) -> Raw:
    """16 bytes -> 32 numbers, the low halves first; the last axis doubles."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _high_bits(raw: Raw, at: int) -> Raw:
    """The fifth bits of 32 weights, from four bytes."""
    bits = np.ascontiguousarray(raw[..., at : at + 4]).view("<u4")
    return ((bits >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << np.uint8(4)


def _q4_0(raw: Raw) -> Floats:
    return _half(raw, 0) * (_nibbles(raw[..., 2:]).astype(np.float32) - 8)


def _q4_1(raw: Raw) -> Floats:
    return _half(raw, 0) * _nibbles(raw[..., 4:]) + _half(raw, 2)


def _q5_0(raw: Raw) -> Floats:
    return _half(raw, 0) * ((_nibbles(raw[..., 6:]) | _high_bits(raw, 2)).astype(np.float32) - 16)


def _q5_1(raw: Raw) -> Floats:
    return _half(raw, 0) * (_nibbles(raw[..., 8:]) | _high_bits(raw, 4)) + _half(raw, 2)


def _q8_0(raw: Raw) -> Floats:
    return _half(raw, 0) * np.ascontiguousarray(raw[..., 2:]).view(np.int8)


def mx_blocks(codes: Raw, scales: Raw) -> Raw:
    """MXFP4 as safetensors have it, 16 bytes [..., blocks, 16] of neighbours and a scale [..., blocks], as GGUF files
    have it: uint8 [rows, 17 blocks]."""
    numbers = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    packed = numbers[..., :16] | numbers[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], axis=-1).reshape(-1, 17 * scales.shape[-1])


def _pairs_of_bits(raw: Raw, at: int) -> Raw:
    """64 bytes from `at` on -> 256 numbers from 0 to 3, four in turn of every 32 bytes; [rows, blocks, 8, 32]."""
    parts = raw[..., at : at + 64].reshape(*raw.shape[:-1], 2, 1, 32)
    return (parts >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)).reshape(
        *raw.shape[:-1], 8, 32
    )


def _by_sixteen(numbers: NDArray[np.generic]) -> NDArray[np.generic]:
    """[rows, blocks, 8, 32] -> [rows, blocks, 16, 16]."""
    return numbers.reshape(*numbers.shape[:-2], 16, 16)


def _q2_k(raw: Raw) -> Floats:
    """A scale and a minimum for each 16 weights, 4 bits each."""
    scales, minimums = (_half(raw, 80) * (raw[..., :16] & 15), _half(raw, 82) * (raw[..., :16] >> 4))
    return scales[..., None] * _by_sixteen(_pairs_of_bits(raw, 16)) - minimums[..., None]


def _q3_k(raw: Raw) -> Floats:
    """A scale for each 16 weights: 6 bits, 32 too high. The numbers are 4 too high."""
    low = np.concatenate([raw[..., 96:104] & 15, raw[..., 96:104] >> 4], axis=-1)
    high = raw[..., None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    scales = _half(raw, 108) * ((low | high.reshape(low.shape) << 4).astype(np.float32) - 32)
    third = raw[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    return scales[..., None] * (_by_sixteen(_pairs_of_bits(raw, 32) | third << 2).astype(np.float32) - 4)


def _k_scales(raw: Raw) -> tuple[Floats, Floats]:
    """Scales and minimums of Q4_K and Q5_K, [rows, blocks, 8, 1]: 6 bits for each block of 32, times two float16."""
    packed = raw[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return (_half(raw, 0) * scales)[..., None], (_half(raw, 2) * minimums)[..., None]


def _k_nibbles(packed: Raw) -> Raw:
    """128 bytes -> 256 numbers: of every 32 bytes the low halves, then the high ones; [rows, blocks, 8, 32]."""
    parts = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=-2).reshape(*packed.shape[:-1], 8, 32)


def _q4_k(raw: Raw) -> Floats:
    scales, minimums = _k_scales(raw)
    return scales * _k_nibbles(raw[..., 16:]) - minimums


def _q5_k(raw: Raw) -> Floats:
    scales, minimums = _k_scales(raw)
    high = raw[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return scales * (_k_nibbles(raw[..., 48:]) | high << 4) - minimums


def _q6_k(raw: Raw) -> Floats:
    packed = raw[..., :128].reshape(*raw.shape[:-1], 2, 1, 64)
    low = np.concatenate([packed & 15, packed >> 4], axis=-2).reshape(*raw.shape[:-1], 2, 4, 32)
    bits = raw[..., 128:192].reshape(*raw.shape[:-1], 2, 1, 32)
    high = bits >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    numbers = ((low | high << 4).astype(np.int8) - 32).reshape(*raw.shape[:-1], 16, 16)
    scales = _half(raw, 208) * np.ascontiguousarray(raw[..., 192:208]).view(np.int8)
    return scales[..., None] * numbers


def _levels(name: str, packed: Raw) -> Floats:
    """16 bytes for each 32 numbers -> what the numbers stand for, [..., 32]."""
    return np.array(LEVELS[name], np.float32)[_nibbles(packed)]


def _mxfp4(raw: Raw) -> Floats:
    scales = np.ldexp(np.float32(1), raw[..., :1].astype(np.int32) - 128)
    return scales * _levels("MXFP4", raw[..., 1:])


def _iq4_nl(raw: Raw) -> Floats:
    return _half(raw, 0) * _levels("IQ4_NL", raw[..., 2:])


def _iq4_xs(raw: Raw) -> Floats:
    """6 bits of scale for each block of 32, 32 too high: four low ones, then two high ones."""
    high = np.ascontiguousarray(raw[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.ascontiguousarray(raw[..., 4:8]).view("<u4") >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    scales = _half(raw, 0) * ((low | high << 4).astype(np.float32) - 32)
    return scales[..., None] * _levels("IQ4_XS", raw[..., 8:].reshape(*raw.shape[:-1], 8, 16))


def _wide(name: str, raw: Raw) -> Floats:
    """A scale for each 16 weights."""
    scales = np.float32(WIDE[name]) * _half(raw, 0) * np.ascontiguousarray(raw[..., 2:18]).view(np.int8)
    levels = _levels(name, raw[..., 18:].reshape(*raw.shape[:-1], 8, 16))
    return scales[..., None] * levels.reshape(*scales.shape, 16)


def _narrow(name: str, raw: Raw) -> Floats:
    form, wider = widened(name, raw.reshape(len(raw), -1))
    return floats_of(form, wider)


def _bfloat(raw: Raw) -> Floats:
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


TYPES: dict[str, tuple[int, Callable[[Raw], Floats]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "MXFP4": (17, _mxfp4),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "Q8_0": (34, _q8_0),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
    **{name: (146, partial(_wide, name)) for name in WIDE},
    **{name: (size, partial(_narrow, name)) for name, (size, _) in NARROW.items()},
    "F16": (2, lambda raw: _half(raw, 0)),
    "BF16": (2, _bfloat),
    "F32": (4, lambda raw: np.ascontiguousarray(raw).view(np.float32)),
}
"""By name: bytes of a block, and what makes floats of blocks."""
_OF_FILES = [name for name in TYPES if name not in WIDE]


class UnknownBlockType(ValueError):
    """A block type that the CPU engine does not compute on."""

    def __init__(self, name: str) -> None:
        super().__init__(f"block type {name} (known are {', '.join(_OF_FILES)})")


def floats_of(name: str, data: Raw) -> Floats:
    """A matrix of a file, uint8 [rows, bytes of a row], as float32 [rows, columns]. Raises UnknownBlockType."""
    if name not in TYPES:
        raise UnknownBlockType(name)
    size, function = TYPES[name]
    return function(data.reshape(len(data), -1, size)).reshape(len(data), -1)


def packed(weights: Floats, bits: int) -> tuple[str, Raw]:
    """Floats [rows, columns] rounded to blocks of 8 bits (Q8_0) or 4 (Q4_1): the type's name and its bytes."""
    parts = weights.reshape(len(weights), -1, 32)
    if bits == 8:
        scales = (np.abs(parts).max(axis=2, keepdims=True) / 127).astype(np.float16)
        numbers = np.clip(np.rint(parts / _divisor(scales)), -127, 127).astype(np.int8).view(np.uint8)
        return "Q8_0", _rows(scales, numbers)
    minimums = parts.min(axis=2, keepdims=True).astype(np.float16)
    scales = ((parts.max(axis=2, keepdims=True) - minimums) / 15).astype(np.float16)
    numbers = np.clip(np.rint((parts - minimums.astype(np.float32)) / _divisor(scales)), 0, 15).astype(
        np.uint8
    )
    return "Q4_1", _rows(scales, minimums, numbers[..., :16] | numbers[..., 16:] << 4)


def _rows(*parts: NDArray[np.generic]) -> Raw:
    """Parts of each block behind each other, as bytes [rows, bytes of a row]."""
    whole = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=2)
    return np.ascontiguousarray(whole).reshape(len(whole), -1)


def _divisor(scales: NDArray[np.float16]) -> Floats:
    return np.where(scales == 0, 1, scales).astype(np.float32)
