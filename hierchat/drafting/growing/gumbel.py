"""Draw Gumbel noise of (seed, position, token), counter-based: any token's without the others'.
Noise is -log(arrival), with an independent exponential arrival for every token. Tokens form blocks of 64. A block's
earliest arrival is drawn first, of rate 64, and falls on each member equally likely; the others start afresh there
(top-down construction of Maddison, Tarlow and Minka, "A* Sampling", NeurIPS 2014).
Bits are SplitMix64's (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). The
sampler draws with numpy, drafting in kernels: a draft is accepted only if both draw the same numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.growing import kernel

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
Doubles = NDArray[np.float64]

MEMBERS = 64
WIDTH = 512
"""Blocks of a page. Block b of the first page holds the tokens b, b + 512, b + 1024 ...: the blocks' maxima are then
maxima of long rows, which numpy takes three times as fast as those of 64 neighbours."""
PAGE = MEMBERS * WIDTH

_ROWS = np.arange(MEMBERS) * WIDTH
_MEMBER = MEMBERS - 1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_12, _27, _30, _31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)


@kernel
def _hash(key, counter):  # type: ignore[no-untyped-def]
    bits = np.uint64(counter) * _GAMMA + np.uint64(key)
    bits = (bits ^ (bits >> _30)) * _FIRST
    bits = (bits ^ (bits >> _27)) * _SECOND
    return bits ^ (bits >> _31)


@kernel
def _log(bits):  # type: ignore[no-untyped-def]
    return np.log((np.float64(bits >> _12) + 0.5) * 2.0**-52)


@kernel
def reply_key(seed):  # type: ignore[no-untyped-def]
    """Return the key with which all noise of a seed begins."""
    return _hash(_GAMMA, seed)


@kernel
def place_key(reply, position):  # type: ignore[no-untyped-def]
    """Return the key of all noise at a position. Kernels write 0 for no noise, which is never a key."""
    return _hash(reply, position)


@kernel
def gumbel_of_one(key, token):  # type: ignore[no-untyped-def]
    """Draw the noise of one token. It equals that of `gumbel` except for rounding."""
    token = np.int64(token)
    bits = _hash(key, 2 * (token >> 15 << 9 | token & 511))
    arrival = -_log(bits) / MEMBERS
    if bits & np.uint64(_MEMBER) != np.uint64(token >> 9 & _MEMBER):
        arrival -= _log(_hash(key, 2 * token + 1))
    return -np.log(arrival)


def stream(seed: int, position: int) -> np.uint64:
    """Hash seed and position to the key of all noise there."""
    return np.uint64(place_key(np.uint64(reply_key(np.uint64(seed))), position))


def gumbel(key: np.uint64, tokens: Ids) -> Doubles:
    """Draw the standard Gumbel noise of each of `tokens`."""
    blocks, rows = tokens >> 15 << 9 | tokens & 511, (tokens >> 9 & _MEMBER).view(np.uint64)
    bits = _hashes(key, np.array((2 * blocks, 2 * tokens + 1)).view(np.uint64))
    logs = _logs(bits)
    arrivals = logs[0] * (-1 / MEMBERS)
    arrivals -= np.where(bits[0] & _MEMBER == rows, 0.0, logs[1])
    return _minus_log(arrivals)


def earliest(key: np.uint64, blocks: Ids) -> tuple[Doubles, Ids]:
    """Draw the largest noise in each block, and the token that has it (it may lie beyond the vocabulary)."""
    bits = _hashes(key, 2 * blocks.view(np.uint64))
    noise = _minus_log(_logs(bits) * (-1 / MEMBERS))
    return noise, _first_member(blocks) + ((bits & _MEMBER).view(np.int64) * WIDTH)


def members(blocks: Ids) -> Ids:
    """List the tokens of each block, [blocks, 64]; the last may lie beyond the vocabulary."""
    return _first_member(blocks)[:, None] + _ROWS


def _first_member(blocks: Ids) -> Ids:
    return blocks >> 9 << 15 | blocks & 511


def _logs(bits: Words) -> Doubles:
    """Take logarithms of uniforms from the upper 52 bits: the middle of one of 2^52 cells, never 0 or 1."""
    uniforms = (bits >> _12) + 0.5
    uniforms *= 2.0**-52
    return np.log(uniforms, out=uniforms)


def _minus_log(values: Doubles) -> Doubles:
    np.log(values, out=values)
    return np.negative(values, out=values)


def _hashes(key: np.uint64, counters: Words) -> Words:
    bits = counters * _GAMMA
    bits += key
    bits ^= bits >> _30
    bits *= _FIRST
    bits ^= bits >> _27
    bits *= _SECOND
    bits ^= bits >> _31
    return bits
