"""Draw Gumbel noise of (seed, position, token): counter-based, so that any token's is had without the others'.

Noise is -log(arrival), with an independent exponential arrival for every token: the largest noise is the earliest
arrival. Tokens stand in blocks of 64, and a block's earliest arrival is drawn before the rest: it is an exponential of
rate 64, falls on each member equally likely, and the others start afresh there, for exponentials forget. So one draw
tells the largest noise of 64 tokens, and the race (sampler.py) looks only into blocks that can still win (the top-down
construction of Maddison, Tarlow and Minka, "A* Sampling", NeurIPS 2014).

Bits are SplitMix64's (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): its output
function over counters that start where seed and position say."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
Token = TypeVar("Token", int, Ids)

MEMBERS = 64
WIDTH = 512
"""Blocks of a page. Block b of the first page holds the tokens b, b + 512, b + 1024 ...: the blocks' maxima are then
maxima of long rows, which numpy takes three times as fast as those of 64 neighbours."""
PAGE = MEMBERS * WIDTH

_ROWS = np.arange(MEMBERS) * WIDTH
_MEMBER = MEMBERS - 1
_WORD = 2**64 - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def stream(seed: int, position: int) -> int:
    """Hash seed and position to the key of all noise there."""
    return _hash(_hash(_GAMMA, seed), position)


def gumbel(key: int, tokens: Ids) -> Floats:
    """Draw the standard Gumbel noise of each of `tokens`."""
    return _gumbel(key, *_places(tokens))


def gumbel_of_first(key: int, size: int) -> Floats:
    """Draw the noise of the tokens 0 to size - 1; quicker than gumbel for few."""
    return _gumbel(key, *_first_places(size))


def gumbel_of_one(key: int, token: int) -> float:
    """Draw the noise of one token, but for rounding; quicker than gumbel."""
    bits = _hash(key, 2 * _block(token))
    arrival = -_log(bits) / MEMBERS
    if bits & _MEMBER != _row(token):
        arrival -= _log(_hash(key, 2 * token + 1))
    return -math.log(arrival)


def earliest(key: int, blocks: Ids) -> tuple[Floats, Ids]:
    """Draw the largest noise in each block, and the token that has it (it may lie beyond the vocabulary)."""
    bits = _hashes(key, 2 * blocks.view(np.uint64))
    noise = _minus_log(_logs(bits) * (-1 / MEMBERS))
    return noise, _first_member(blocks) + ((bits & _MEMBER).view(np.int64) * WIDTH)


def members(blocks: Ids) -> Ids:
    """List the tokens of each block, [blocks, 64]; the last may lie beyond the vocabulary."""
    return _first_member(blocks)[:, None] + _ROWS


def _gumbel(key: int, counters: Words, rows: Words) -> Floats:
    bits = _hashes(key, counters)
    logs = _logs(bits)
    arrivals = logs[0] * (-1 / MEMBERS)
    arrivals -= np.where(bits[0] & _MEMBER == rows, 0.0, logs[1])
    return _minus_log(arrivals)


def _places(tokens: Ids) -> tuple[Words, Words]:
    """Return the counters of each token's block and its own, [2, tokens]; and its row in the block."""
    counters = np.array((2 * _block(tokens), 2 * tokens + 1))
    return counters.view(np.uint64), _row(tokens).view(np.uint64)


@lru_cache(maxsize=4)
def _first_places(size: int) -> tuple[Words, Words]:
    return _places(np.arange(size))


def _block(token: Token) -> Token:
    return token >> 15 << 9 | token & 511


def _row(token: Token) -> Token:
    return token >> 9 & _MEMBER


def _first_member(blocks: Ids) -> Ids:
    return blocks >> 9 << 15 | blocks & 511


def _logs(bits: Words) -> Floats:
    """Take logarithms of uniforms from the upper 52 bits: the middle of one of 2^52 cells, never 0 or 1."""
    uniforms = (bits >> 12) + 0.5
    uniforms *= 2.0**-52
    return np.log(uniforms, out=uniforms)


def _log(bits: int) -> float:
    return math.log(((bits >> 12) + 0.5) * 2.0**-52)


def _minus_log(values: Floats) -> Floats:
    np.log(values, out=values)
    return np.negative(values, out=values)


def _hashes(key: int, counters: Words) -> Words:
    bits = counters * _GAMMA
    bits += np.uint64(key)
    bits ^= bits >> 30
    bits *= _FIRST
    bits ^= bits >> 27
    bits *= _SECOND
    bits ^= bits >> 31
    return bits


def _hash(key: int, counter: int) -> int:
    bits = counter * _GAMMA + key & _WORD
    bits = (bits ^ bits >> 30) * _FIRST & _WORD
    bits = (bits ^ bits >> 27) * _SECOND & _WORD
    return bits ^ bits >> 31
