"""What a forward of vLLM costs by the rows of the whole batch, learned while it runs.

The estimate of engine/latency.py, which cannot be imported there, for forwards over hundreds of rows: what is estimated
are the milliseconds at some numbers of rows, and between them lie straight lines. Context is left out: what it costs
changes slowly, and the estimate follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDEST = 512
"""Rows of a forward that are priced at most: beyond that nothing is drafted."""
# Relative to the cost of one row, standard deviations but for the first:
ROW = 0.05
ROW_SD = 0.15
STEP_SD = 0.1
SPEED_SD = 0.3
NOISE = 0.06
FORGET = 1 / 500
"""Part of what was learned that is forgotten with every step."""
CLIP = 2.0
"""Standard deviations that one forward may be off; what is beyond is taken for another program's work."""
LEAST_MS = 1e-3
REFRESH = 16
"""Forwards after which the prices are made anew."""


class RowCosts:
    """A drafting.cost.Latency."""

    def __init__(self, widest: int = WIDEST) -> None:
        """`widest`: rows of the widest forward there will be."""
        self._widest = widest = min(max(widest, 2), WIDEST)
        self._knots = np.array(
            sorted({min(base << power, widest) for power in range(9) for base in (1, 3)} | {1, widest})
        )
        rows = (self._knots - 1).astype(np.float64)
        self._mean = 1.0 + ROW * rows
        self._prior = ROW_SD**2 * np.outer(rows, rows) + STEP_SD**2 * np.minimum.outer(rows, rows)
        self._covariance = self._prior + self._speed()
        self._scale = 0.0
        """Milliseconds that are 1 within; 0: nothing was measured."""
        self._table: list[float] = []
        self._news = 0

    def note(self, rows: int, ms: float) -> None:
        """A forward over so many rows took `ms`."""
        if not 0 < rows <= self._widest or ms < LEAST_MS:
            return
        at = self._weights(rows)
        if not self._scale:
            self._scale = ms / float(at @ self._mean)
            self._table = []  # whoever asked before got no milliseconds
        covariance = (1.0 - FORGET) * self._covariance + FORGET * (self._prior + self._speed())
        expected = float(at @ self._mean)
        weight = covariance @ at
        variance = float(at @ weight) + (NOISE * expected) ** 2
        most = CLIP * variance**0.5
        surprise = min(max(ms / self._scale - expected, -most), most)
        self._mean += weight * (surprise / variance)
        self._covariance = covariance - np.outer(weight, weight / variance)
        self._news += 1

    def step_ms(self, context: int) -> Sequence[float]:
        """Milliseconds of a forward over 1, 2, ... rows; never falling. The same list until it is out of date."""
        if not self._table or self._news >= REFRESH:
            rows = np.arange(1, self._widest + 1)
            costs = np.interp(rows, self._knots, self._mean)
            rising = np.maximum.accumulate(costs) + np.minimum.accumulate(costs[::-1])[::-1]
            self._table = np.maximum(rising / 2 * (self._scale or 1.0), LEAST_MS).tolist()
            self._news = 0
        return self._table

    def _weights(self, rows: int) -> NDArray[np.float64]:
        """How much of each knot's cost a forward over `rows` has."""
        weights = np.zeros(self._knots.size)
        after = int(np.searchsorted(self._knots, rows))
        if self._knots[after] == rows:
            weights[after] = 1.0
        else:
            before, behind = self._knots[after - 1], self._knots[after]
            weights[after] = (rows - before) / (behind - before)
            weights[after - 1] = 1.0 - weights[after]
        return weights

    def _speed(self) -> NDArray[np.float64]:
        """Covariance of a machine that is faster or slower at all it does."""
        return np.outer(SPEED_SD**2 * self._mean, self._mean)
