"""What is done to one row of activations at a time: norms, int16, rotary positions, SwiGLU."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.dot import GROUP, SUMS
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.llvm import fma
from hierchat.engine.cpu.products import ROWS, height_at
from hierchat.engine.cpu.rounding import round_block
from hierchat.engine.cpu.softmax import soft_cap
from hierchat.models.formats.layouts import BLOCK

LANES = 16
"""Sums of a row run side by side in this many lanes, then are added in order."""
MOST = np.float32(32767)
ONE, ZERO = np.float32(1), np.float32(0)
NOTHING = np.float32(1e-30)
"""Smaller numbers have no scale that float32 could hold; they become zero."""


@kernel
def normalise(x, weight, epsilon, out):  # type: ignore[no-untyped-def]
    """out = x / sqrt(mean(x * x) + epsilon) * weight (RMSNorm); all float32 [n]."""
    n = x.shape[0]
    whole = n // LANES * LANES
    lanes = np.zeros(LANES, np.float32)
    for k in range(0, whole, LANES):
        for j in range(LANES):
            lanes[j] = fma(x[k + j], x[k + j], lanes[j])
    for j in range(n - whole):
        lanes[j] = fma(x[whole + j], x[whole + j], lanes[j])
    total = ZERO
    for j in range(LANES):
        total += lanes[j]
    factor = ONE / np.sqrt(total / np.float32(n) + np.float32(epsilon))
    for k in range(n):
        out[k] = x[k] * factor * weight[k]


@kernel
def quantise(x, place, row, rows, work):  # type: ignore[no-untyped-def]
    """x float32 [n] as int16 with a scale per GROUP, as row `row` of `rows` that begin at `place`; what is no number
    stays none.

    The rows that one pass computes lie side by side: work.integers [blocks, height, BLOCK], work.levels [groups,
    height], work.sums [blocks, SUMS, height]; pass after pass.
    """
    n = x.shape[0]
    blocks, groups = n // BLOCK, -(-n // GROUP)
    first = row // ROWS * ROWS
    height, at = height_at(first, rows), row % ROWS
    first += place
    out = work.integers[first * n :]
    levels = work.levels[first * groups :]
    sums = work.sums[first * blocks * SUMS :]
    lanes, broken = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for group in range(groups):
        part = x[group * GROUP : min((group + 1) * GROUP, n)]
        lanes[:] = ZERO
        broken[:] = ZERO
        for k in range(0, part.shape[0], LANES):
            for j in range(LANES):
                value = abs(part[k + j])
                lanes[j] = value if value > lanes[j] else lanes[j]
                broken[j] += value * ZERO  # NaN for NaN and infinity
        most, nothing = ZERO, ZERO
        for j in range(LANES):
            most = lanes[j] if lanes[j] > most else most
            nothing += broken[j]
        void = most < NOTHING or nothing != ZERO
        levels[group * height + at] = nothing if void else most / MOST
        inverse = ZERO if void else MOST / most
        for block in range(group * 8, group * 8 + part.shape[0] // BLOCK):
            place, total = (block * height + at) * BLOCK, block * SUMS * height + at
            if void:
                out[place : place + BLOCK] = 0
                for sum in range(SUMS):
                    sums[total + sum * height] = 0
            else:
                round_block(
                    x[block * BLOCK :].ctypes.data,
                    inverse,
                    out[place:].ctypes.data,
                    sums[total:].ctypes.data,
                    height * 4,
                )


@kernel
def rotate(head, cosines, sines, apart):  # type: ignore[no-untyped-def]
    """Rotary position of one head in place, each of its first numbers against the one `apart`; cosines and sines
    float32 [pairs]."""
    pairs = cosines.shape[0]
    low, high = head[:pairs], head[apart : apart + pairs]
    for j in range(pairs):
        one, other = low[j], high[j]
        low[j] = one * cosines[j] - other * sines[j]
        high[j] = other * cosines[j] + one * sines[j]


@kernel
def added(x, more, scale):  # type: ignore[no-untyped-def]
    """x += more * scale; by 1 exact."""
    for k in range(x.shape[0]):
        x[k] += more[k] * scale


@kernel
def multiplied(x, factor):  # type: ignore[no-untyped-def]
    """x *= factor"""
    for k in range(x.shape[0]):
        x[k] *= factor


@kernel
def capped(x, cap):  # type: ignore[no-untyped-def]
    """x = cap * tanh(x / cap), float32 of any length; each number's bits depend on itself alone."""
    whole = x.shape[0] // LANES * LANES
    soft_cap(x.ctypes.data, whole, np.float32(cap))
    if whole < x.shape[0]:
        rest = np.zeros(LANES, np.float32)
        for k in range(x.shape[0] - whole):
            rest[k] = x[whole + k]
        soft_cap(rest.ctypes.data, LANES, np.float32(cap))
        for k in range(x.shape[0] - whole):
            x[whole + k] = rest[k]
