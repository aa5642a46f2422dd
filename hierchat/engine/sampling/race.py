"""The sampler's choice over a large vocabulary without going through all of it: the same token as the definition's.

Three things make it quick. Noise comes by blocks whose largest is known (noise.py), so that of 152,000 tokens some
dozens need noise of their own. Top-k, top-p and min-p all keep what is above some logit, so that excluding is a
comparison. And top-p needs no sorted vocabulary: the winner is asked whether it is in the nucleus, and where it is not,
neither is what is less likely, and the race is run again above it.
"""

from __future__ import annotations

import math

import numpy as np

from hierchat.config import GenerationSettings
from hierchat.engine.sampling.noise import (
    MEMBERS,
    PAGE,
    WIDTH,
    Floats,
    Ids,
    earliest,
    gumbel,
    gumbel_of_one,
    members,
)
from hierchat.engine.sampling.processors import COLDEST, FloatArray

UNSURE = 1e-4
"""Shares of probability are summed in float32; nearer to top_p than this, the definition decides. Float32 puts a weight
exp(-x) off by about 2e-7 (1 + x) of itself, below 1e-5 wherever weights add up to anything, and a sum by 3e-5."""
SLACK = 1e-9
"""Bounds and scores are rounded along different ways."""
CHUNK, RUN = 32_768, 8_192
"""Of float32: what stays in a core's cache from one operation to the next; what is summed by one scalar product, which
BLAS takes on one thread."""


def race(values: FloatArray, best: int, settings: GenerationSettings, key: int) -> int | None:
    """The token that the definition chooses, or None in the rare case that only the definition can tell.

    `values`: logits after penalties and bias, the largest at `best`. Temperature is above 0.
    """
    field = Field(values, best, settings, key)
    kept, floor = values, -math.inf
    if 0 < settings.top_k < len(values):
        kept = largest(values, field.peaks, settings.top_k)
        floor = float(kept.min())
    token = field.winner(floor, len(values))
    while settings.top_p < 1.0 and token != best:
        inside = field.in_nucleus(token, kept, settings.top_p)
        if inside is None:
            return None
        if inside:
            break
        token = field.winner(float(values[token]), token)
    return token


class Field:
    """A row of logits to be raced over; a score is a scaled logit plus noise."""

    def __init__(self, values: FloatArray, best: int, settings: GenerationSettings, key: int) -> None:
        self.values = values
        self.peaks = block_maxima(values)
        self.best = best
        self.top = float(values[best])
        self.temperature = max(settings.temperature, COLDEST)
        self.least = math.log(settings.min_p) if settings.min_p else -math.inf
        self.key = key

    def winner(self, floor: float, end: int) -> int:
        """The token of the best score among those above `floor`, and those on it before token `end`."""
        blocks = np.flatnonzero(self.peaks >= floor)
        noise, leaders = earliest(self.key, blocks)
        reached = (self._allowed(leaders, floor, end) + noise).max()
        reached = max(reached, gumbel_of_one(self.key, self.best)) - SLACK
        looked_into = self._scaled(self.peaks[blocks]) + noise >= reached
        tokens = members(blocks[looked_into])
        scaled = self._allowed(tokens, floor, end)
        near = scaled + noise[looked_into, None] >= reached
        tokens = tokens[near]
        scores = scaled[near] + gumbel(self.key, tokens)
        return int(tokens[scores == scores.max()].min())

    def in_nucleus(self, token: int, kept: FloatArray, top_p: float) -> bool | None:
        """Whether what is likelier than `token` among `kept` has less than top_p of probability; None: it is near."""
        value = float(self.values[token])
        equals = int(np.count_nonzero(self.values[:token] == value))  # likelier by vocabulary order
        before = equals * math.exp((value - self.top) / self.temperature)
        higher = self.peaks > value
        if kept is self.values and 4 * np.count_nonzero(higher) < len(self.peaks):
            # Mostly it is few blocks that have the likelier tokens, and their maxima tell enough of the others.
            tokens = members(np.flatnonzero(higher))
            above, total = self._weights(self.values[tokens[tokens < len(self.values)]], value)
            total += float(np.exp(self._scaled(self.peaks[~higher])).sum())
            if before + above < (top_p - UNSURE) * total:
                return True
        above, total = self._weights(kept, value)
        share = (before + above) / total
        return None if abs(share - top_p) < UNSURE else share < top_p

    def _weights(self, values: FloatArray, value: float) -> tuple[float, float]:
        """Sums of exp(scaled logit), the best one's being 1: of what is above `value`, and of all."""
        length = min(CHUNK, -(-len(values) // RUN) * RUN)
        weights, counted = np.empty(length, np.float32), np.ones((2, length), np.float32)
        sums = np.zeros((2, length // RUN))
        for start in range(0, len(values), CHUNK):
            chunk = values[start : start + CHUNK]
            some = weights[: len(chunk)]
            np.subtract(chunk, self.top, out=some, casting="same_kind")
            some *= np.float32(1 / self.temperature)
            np.exp(some, out=some)
            weights[len(chunk) :] = 0.0
            counted[0, : len(chunk)] = chunk > value
            sums += np.vecdot(weights.reshape(-1, RUN), counted.reshape(2, -1, RUN))
        above, total = sums.sum(axis=1).tolist()
        return above, total

    def _allowed(self, tokens: Ids, floor: float, end: int) -> Floats:
        """Scaled logits; -inf where a token is excluded or beyond the vocabulary."""
        values = self.values.take(tokens, mode="clip")
        scaled = self._scaled(values)
        scaled[tokens >= len(self.values)] = -np.inf
        if self.least > -math.inf:
            scaled[scaled < self.least] = -np.inf
        if floor > -math.inf:
            scaled[(values < floor) | (values == floor) & (tokens >= end)] = -np.inf
        return scaled

    def _scaled(self, values: FloatArray) -> Floats:
        return np.subtract(values, self.top, dtype=np.float64) / self.temperature


def block_maxima(values: FloatArray) -> FloatArray:
    """The largest value of each of noise.py's blocks; -inf for one that lies beyond the vocabulary."""
    pages, rest = divmod(len(values), PAGE)
    full, tail = values[: pages * PAGE], values[pages * PAGE :]
    maxima = np.full((pages + 1, WIDTH), -np.inf, values.dtype)
    np.maximum.reduce(full.reshape(pages, MEMBERS, WIDTH), axis=1, out=maxima[:pages])
    rows, columns = divmod(rest, WIDTH)
    np.maximum.reduce(tail[: rows * WIDTH].reshape(rows, WIDTH), axis=0, out=maxima[pages], initial=-np.inf)
    np.maximum(maxima[pages, :columns], tail[rows * WIDTH :], out=maxima[pages, :columns])
    return maxima.ravel()


def largest(values: FloatArray, peaks: FloatArray, count: int) -> FloatArray:
    """The `count` largest values and the equals of the last of them, in any order.

    As many blocks' maxima are values: what is below the least of these is not among the largest.
    """
    if count < len(peaks):
        tokens = members(np.flatnonzero(peaks >= np.partition(peaks, -count)[-count]))
        values = values[tokens[tokens < len(values)]]
    return values[values >= np.partition(values, -count)[-count]]
