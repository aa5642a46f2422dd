"""The sampler's noise, known before anything is drafted: a token is chosen by its logit and by the noise that seed,
position and token have, so a draft may be chosen by it, too.

The same numbers as engine/sampling/gumbel.py draws, which has what they are; here one token's at a time.
"""

from __future__ import annotations

import numpy as np

from hierchat.drafting.growing import kernel

LUCKY = 2.0
"""Noise from which on a token that was seen once in a sample is a candidate by that alone: one token in eight."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _12 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(12)
_MEMBER = np.uint64(63)


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
    """What all noise of a seed begins with."""
    return _hash(_GAMMA, seed)


@kernel
def place_key(reply, position):  # type: ignore[no-untyped-def]
    """The key of all noise at a position, as noise.stream has it. 0 stands for no noise, and never comes out."""
    return _hash(reply, position)


@kernel
def gumbel(key, token):  # type: ignore[no-untyped-def]
    """Noise of one token."""
    token = np.int64(token)
    bits = _hash(key, 2 * (token >> 15 << 9 | token & 511))
    arrival = -_log(bits) / 64.0
    if bits & _MEMBER != np.uint64(token >> 9 & 63):
        arrival -= _log(_hash(key, 2 * token + 1))
    return np.float32(-np.log(arrival))
