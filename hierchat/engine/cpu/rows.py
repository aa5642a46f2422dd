"""What is done to one row of activations at a time: norms, int16, rotary positions, SwiGLU."""

from __future__ import annotations

import numpy as np

from hierchat.engine.cpu.dot import GROUP, ROWS
from hierchat.engine.cpu.jit import kernel
from hierchat.engine.cpu.llvm import fma, rounded
from hierchat.models.formats.quantised_blocks import BLOCK

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
def quantise(x, row, integers, levels, sums):  # type: ignore[no-untyped-def]
    """x float32 [n] as int16 with a scale per GROUP, into row `row` of the flat buffers; what is no number stays none.

    `sums` [rows / 8, blocks, 8] gets each block's total, for the weights' minimums.
    """
    n = x.shape[0]
    blocks, groups = n // BLOCK, -(-n // GROUP)
    out = integers[row * n : (row + 1) * n]
    level = levels[row * groups : (row + 1) * groups]
    total = sums[row // ROWS * blocks * ROWS : (row // ROWS + 1) * blocks * ROWS]
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
        if most < NOTHING or nothing != ZERO:
            level[group] = nothing
            out[group * GROUP : group * GROUP + part.shape[0]] = 0
            for block in range(group * 8, group * 8 + part.shape[0] // BLOCK):
                total[block * ROWS + row % ROWS] = nothing
            continue
        inverse = MOST / most
        level[group] = most / MOST
        piece = out[group * GROUP : group * GROUP + part.shape[0]]
        for k in range(part.shape[0]):
            piece[k] = np.int16(rounded(part[k] * inverse))
        for block in range(part.shape[0] // BLOCK):
            whole = np.int32(0)
            numbers = piece[block * BLOCK : (block + 1) * BLOCK]
            for k in range(BLOCK):
                whole += np.int32(numbers[k])
            total[(group * 8 + block) * ROWS + row % ROWS] = np.float32(whole) * level[group]


@kernel
def rotate(head, cosines, sines):  # type: ignore[no-untyped-def]
    """Rotary position of one head, halves against each other, in place; cosines and sines float32 [head_dim / 2]."""
    half = cosines.shape[0]
    low, high = head[:half], head[half : 2 * half]
    for j in range(half):
        one, other = low[j], high[j]
        low[j] = one * cosines[j] - other * sines[j]
        high[j] = other * cosines[j] + one * sines[j]


@kernel
def added(x, more):  # type: ignore[no-untyped-def]
    """x += more."""
    for k in range(x.shape[0]):
        x[k] += more[k]
