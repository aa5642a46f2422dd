"""Learn what a step costs on this machine, by the positions that it verifies and the context behind it."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.runner import CachedSequence
from hierchat.jit import Kernels

WIDEST = 32
PROBES = (1, 8, 2, 4, 16, 32, 3, 6, 12, 24)
"""Widths to measure after loading, the most telling first."""
PER_TOKENS = 1000.0
"""The unit of context."""

ROUNDS = 3
SPREAD = 7919
"""Distance of the probes' tokens: a prime."""

# Relative to the cost of one position: the prior, as a mean and standard deviations.
ROW = 0.05
ROW_SD = 0.15
"""Standard deviation of what all rows have in common."""
STEP_SD = 0.1
"""Standard deviation of what each row adds by itself."""
SPEED_SD = 0.3
"""Standard deviation of all costs together: a machine that does something else is slower at every width."""
CONTEXT_SD = 0.1
ROW_CONTEXT_SD = 0.02
NOISE = 0.04
"""Standard deviation of a single forward."""
FORGET = 1 / 500
"""Part of what was learned that is forgotten with every step."""
CLIP = 2.5
"""Standard deviations that one forward may be off; what is beyond is taken for another program's work."""
LEAST_MS = 1e-3
"""No step is faster."""
RESTORED = 0.5
"""Part of an earlier run's certainty that is taken over; its costs are, in proportion."""


class LatencyCurve:
    """Milliseconds of a step over 1..32 positions: a cost for each width plus a slope in context for each row.

    A Gaussian estimate (a Kalman filter). The widths' increments are independent a priori. So widths never seen lie on
    a line between those that were, and steps in the curve appear where they are measured. Each step is one
    observation. Forgetting draws the certainty back to the prior, not the costs.
    """

    def __init__(self) -> None:
        rows = np.arange(WIDEST)
        # per width; per context, per context and row
        self._mean = np.concatenate([1.0 + ROW * rows, [0.0, 0.0]])
        prior = np.zeros((WIDEST + 2, WIDEST + 2))
        prior[:WIDEST, :WIDEST] = ROW_SD**2 * np.outer(rows, rows) + STEP_SD**2 * np.minimum.outer(rows, rows)
        prior[WIDEST, WIDEST] = CONTEXT_SD**2
        prior[WIDEST + 1, WIDEST + 1] = ROW_CONTEXT_SD**2
        self._prior = prior
        self._covariance = prior + self._speed()
        self._scale = 0.0
        """Milliseconds that are 1 within; 0: nothing was measured."""
        self._table: list[float] = []
        self._table_context = 0
        self._changes = 0

    def note(self, width: int, context: int, ms: float) -> None:
        """Learn that a step over `width` positions behind `context` tokens took `ms`."""
        if not 0 < width <= WIDEST or ms < LEAST_MS:
            return
        row, behind = width - 1, context / PER_TOKENS
        if not self._scale:
            self._scale = ms / float(self._mean[row])
            self._table = []  # whoever asked before got no milliseconds
        covariance = (1.0 - FORGET) * self._covariance + FORGET * (self._prior + self._speed())
        weight = covariance[row] + behind * (covariance[WIDEST] + row * covariance[WIDEST + 1])
        expected = self._mean[row] + behind * (self._mean[WIDEST] + row * self._mean[WIDEST + 1])
        variance = (
            weight[row] + behind * (weight[WIDEST] + row * weight[WIDEST + 1]) + (NOISE * expected) ** 2
        )
        most = CLIP * variance**0.5
        surprise = min(max(ms / self._scale - expected, -most), most)
        self._mean += weight * (surprise / variance)
        self._covariance = covariance - np.outer(weight, weight / variance)
        self._changes += 1

    def state(self) -> bytes:
        """Return what was learned, in proportion to the cost of one position, since milliseconds differ from day to
        day."""
        covariance = self._covariance / self._mean[0] ** 2
        learned = {"mean": self._mean / self._mean[0], "covariance": (covariance + covariance.T) / 2}
        return json.dumps({name: np.round(part, 6).tolist() for name, part in learned.items()}).encode()

    def restore(self, state: bytes) -> None:
        """Begin where an earlier run ended. Raises ValueError if its state is damaged.

        Costs are taken over in proportion to each other; the first step noted sets the scale in milliseconds. Only a
        part of the certainty is taken over, so that a machine that has become slower is soon measured anew.
        """
        try:
            read = json.loads(state)
            mean = np.array(read["mean"], np.float64)
            covariance = np.array(read["covariance"], np.float64)
        except (KeyError, TypeError) as error:
            raise ValueError("The stored costs of steps are damaged.") from error
        if (
            (mean.shape, covariance.shape) != (self._mean.shape, self._prior.shape)
            or not (np.isfinite(mean).all() and np.isfinite(covariance).all() and mean[0] > 0)
            or np.linalg.eigvalsh(covariance)[0] < -1e-4
        ):
            raise ValueError("The stored costs of steps are damaged.")
        self._mean = mean
        self._covariance = RESTORED * covariance + (1.0 - RESTORED) * self._prior + self._speed()
        self._scale = 0.0
        self._table = []

    def _speed(self) -> NDArray[np.float64]:
        """Return the covariance of a machine that is faster or slower at every width."""
        return np.outer(SPEED_SD**2 * self._mean, self._mean)

    def step_ms(self, context: int) -> Sequence[float]:
        """Return the milliseconds of a step over 1, 2, ... 32 positions, never falling: one list until it is out of
        date."""
        if not self._table or self._changes >= 16 or abs(context - self._table_context) >= 64:
            behind = context / PER_TOKENS
            slope = self._mean[WIDEST] + np.arange(WIDEST) * self._mean[WIDEST + 1]
            costs = self._mean[:WIDEST] + behind * slope
            rising = np.maximum.accumulate(costs) + np.minimum.accumulate(costs[::-1])[::-1]
            self._table = (np.maximum(rising / 2 * (self._scale or 1.0), LEAST_MS)).tolist()
            self._table_context, self._changes = context, 0
        return self._table

    def within(self, ms: float, context: int) -> int:
        """Count the positions that a step may have to take no longer; at least one."""
        return max(bisect_right(self.step_ms(context), ms), 1)


def measure(curve: LatencyCurve, sequence: CachedSequence, seconds: float = 0.3) -> None:
    """Fill the curve from forwards where the slots stand now; nothing is committed.

    Rounds over all widths, the fastest forward over each counting: as many as fit, and in any case the three widths
    that tell most; a runner without drafts has one width. The first forward over a width may have to prepare
    something, so there are always two.
    """
    probes = PROBES * ROUNDS if sequence.runner.drafts else (1,) * ROUNDS
    context = len(sequence.tokens)
    # Different ones, as in a text: rows of one token would all be routed to the same experts
    tokens = (np.arange(1, WIDEST + 1) * SPREAD % sequence.vocabulary).tolist()
    fastest: dict[int, float] = {}
    end = time.perf_counter() + seconds
    for number, width in enumerate(probes):
        if number >= 3 and time.perf_counter() > end:
            break
        for _ in range(2):
            began = time.perf_counter()
            sequence.forward(tokens[:width], range(-1, width - 1))[0]  # there when the device is done
            ms = (time.perf_counter() - began) * 1e3
            fastest[width] = min(ms, fastest.get(width, ms))
    for width, ms in fastest.items():
        curve.note(width, context, ms)


PIECES = 8
"""Pieces for each thread: one that is late leaves pieces to the others."""
kernel = Kernels(__file__)


@kernel
def _sum(words: Any) -> Any:
    total = np.int64(0)
    for place in range(len(words)):
        total += words[place]
    return total


def fastest_gigabytes_per_second(threads: int, size: int, passes: int) -> float:
    """Measure the reading of the fastest eighth: other programs that compute leave such moments, seldom a whole pass.
    Raises MemoryError."""
    return max(reading_rates(threads, size, passes, threads))


def reading_rates(threads: int, size: int, passes: int, at_once: int) -> list[float]:
    """Measure GB a second of each reading of so many pieces, all of them in turn, after one that is not counted. Raises
    MemoryError."""
    pieces = np.array_split(np.ones(size // 8, np.int64), threads * PIECES)
    with ThreadPoolExecutor(threads) as pool:
        sum(pool.map(_sum, pieces))
        rates = []
        for place in [*range(0, len(pieces), at_once)] * passes:
            read = pieces[place : place + at_once]
            began = time.perf_counter()
            sum(pool.map(_sum, read))
            rates.append(sum(one.nbytes for one in read) / (time.perf_counter() - began) / 1e9)
    return rates
