"""Learn what the rows of a forward cost while forwards run, and price drafts by it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.growing import kernel


class Latency(Protocol):
    """Return costs of steps on this machine, as the engine measures them."""

    def step_ms(self, context: int) -> Sequence[float]:
        """Return the ms of a step over 1, 2, ... positions after `context` tokens, never falling."""
        ...


class FreeRows:
    """Latency of rows that are free up to a fixed width."""

    def __init__(self, width: int) -> None:
        self._step_ms = [1.0] * width

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


WIDEST = 32
"""Positions of the widest step of a LatencyCurve."""
WIDEST_BATCH = 512
"""Rows of a forward that RowCosts prices at most: beyond that nothing is drafted."""
PER_TOKENS = 1000.0
"""The unit of context."""

# Relative to the cost of one row: the prior, as a mean and standard deviations.
ROW = 0.05
ROW_SD = 0.15
"""Standard deviation of the part that all rows share."""
STEP_SD = 0.1
"""Standard deviation of the part of each single row."""
SPEED_SD = 0.3
"""Standard deviation of all costs together: a machine that does something else is slower at every width."""
CONTEXT_SD = 0.1
ROW_CONTEXT_SD = 0.02
FORGET = 1 / 500
"""Fraction of the learned certainty that each step forgets."""
LEAST_MS = 1e-3
"""No step is faster."""
REFRESH = 16
"""Steps after which costs are made anew."""


class CostEstimate:
    """Estimates what a forward costs by its rows, by a Kalman filter with one observation for each forward.
    Increments between some numbers of rows are independent a priori. Forgetting lowers the certainty, not the costs."""

    noise = 0.04
    """Standard deviation of a single forward."""
    clip = 2.5
    """Largest deviation of one forward that counts, in standard deviations; more is another program's work."""

    def __init__(self, rows: NDArray[np.integer], slopes: Sequence[float] = ()) -> None:
        """Start with `rows`, whose costs are estimated, from 1 on; `slopes`: deviations of further terms."""
        more, count = rows - 1.0, len(rows)
        self._mean = np.concatenate([1.0 + ROW * more, np.zeros(len(slopes))])
        self._prior = np.diag([0.0] * count + [slope**2 for slope in slopes])
        common, steps = np.outer(more, more), np.minimum.outer(more, more)
        self._prior[:count, :count] = ROW_SD**2 * common + STEP_SD**2 * steps
        self._covariance = self._prior + np.outer(SPEED_SD**2 * self._mean, self._mean)
        self._scale = 0.0
        """Milliseconds that are 1 within; 0: nothing was measured."""
        self._table: list[float] = []
        self._changes = 0

    def observe(self, at: NDArray[np.float64], ms: float) -> None:
        """Learn that a forward took `ms`, in which each estimate counts as `at` says."""
        if not self._scale:
            self._scale = ms / float(at @ self._mean)
            self._table = []  # it was not in milliseconds
        _observe(self._mean, self._covariance, self._prior, at, ms / self._scale, self.noise, self.clip)
        self._changes += 1

    def rising(self, costs: NDArray[np.float64]) -> list[float]:
        """Return costs as milliseconds that never fall."""
        rising = np.maximum.accumulate(costs) + np.minimum.accumulate(costs[::-1])[::-1]
        self._changes = 0
        return np.maximum(rising / 2 * (self._scale or 1.0), LEAST_MS).tolist()


@kernel
def _observe(mean, covariance, prior, at, value, noise, clip):  # type: ignore[no-untyped-def]
    """Move mean and covariance by one observation, whose deviation is `clip` standard deviations at most."""
    size, expected, variance = len(mean), 0.0, 0.0
    weight = np.zeros(size)
    for i in range(size):
        expected += at[i] * mean[i]
        for j in range(size):
            known = prior[i, j] + SPEED_SD**2 * mean[i] * mean[j]  # as at the beginning
            covariance[i, j] += FORGET * (known - covariance[i, j])
            weight[i] += covariance[i, j] * at[j]
        variance += at[i] * weight[i]
    variance += (noise * expected) ** 2
    most = clip * variance**0.5
    surprise = min(max(value - expected, -most), most) / variance
    for i in range(size):
        mean[i] += weight[i] * surprise
        for j in range(size):
            covariance[i, j] -= weight[i] * weight[j] / variance


class LatencyCurve(CostEstimate):
    """Estimates the ms of a step over 1..32 positions: a cost for each width, a slope in context, and one per row."""

    def __init__(self) -> None:
        super().__init__(np.arange(1, WIDEST + 1), (CONTEXT_SD, ROW_CONTEXT_SD))
        self._table_context = 0

    def note(self, width: int, context: int, ms: float) -> None:
        """Learn that a step over `width` positions after `context` tokens took `ms`."""
        if not 0 < width <= WIDEST or ms < LEAST_MS:
            return
        at = np.zeros(WIDEST + 2)
        at[width - 1] = 1.0
        at[WIDEST:] = context / PER_TOKENS, context / PER_TOKENS * (width - 1)
        self.observe(at, ms)

    def step_ms(self, context: int) -> Sequence[float]:
        """Return the ms of a step over 1..32 positions, never falling: one list until it is out of date."""
        if not self._table or self._changes >= REFRESH or abs(context - self._table_context) >= 64:
            slope = self._mean[WIDEST] + np.arange(WIDEST) * self._mean[WIDEST + 1]
            self._table = self.rising(self._mean[:WIDEST] + context / PER_TOKENS * slope)
            self._table_context = context
        return self._table

    def within(self, ms: float, context: int) -> int:
        """Count the positions that a step may have to take no longer; at least one."""
        return max(bisect_right(self.step_ms(context), ms), 1)


class RowCosts(CostEstimate):
    """Estimates the ms of vLLM's forwards by the rows of the whole batch, with straight lines between some numbers."""

    noise, clip = 0.06, 2.0

    def __init__(self, widest: int = WIDEST_BATCH) -> None:
        """Start with `widest`: rows of the widest forward there will be."""
        self._widest = widest = min(max(widest, 2), WIDEST_BATCH)
        powers = {min(base << power, widest) for power in range(9) for base in (1, 3)}
        knots = np.array(sorted(powers | {1, widest}))
        super().__init__(knots)
        rows, each = np.arange(1, widest + 1), np.identity(knots.size)
        self._at = np.stack([np.interp(rows, knots, one) for one in each], axis=1)
        """[rows - 1]: how much of each estimate a forward over so many rows has."""

    def note(self, rows: int, ms: float) -> None:
        """Note that a forward over so many rows took `ms`."""
        if 0 < rows <= self._widest and ms >= LEAST_MS:
            self.observe(self._at[rows - 1], ms)

    def step_ms(self, context: int) -> Sequence[float]:
        """Return the ms of a forward over 1, 2, ... rows, never falling; the same list until it is out of date."""
        if not self._table or self._changes >= REFRESH:
            self._table = self.rising(self._at @ self._mean)
        return self._table


MEMORY = 6.0
"""Tokens over which the pace is averaged."""


@kernel
def _onward(extra):  # type: ignore[no-untyped-def]
    """Find the cheapest way on from n drafts: rows may come in groups, of which all but the first are free."""
    onward = np.full(len(extra) - 1, np.inf)
    for n in range(len(onward)):
        for more in range(1, len(extra) - n):
            onward[n] = min(onward[n], (extra[n + more] - extra[n]) / more)
    return onward


class DraftCost:
    """Prices of drafts at the present pace: `extra` [n] ms that n drafts add to a step, `onward` [n] the least for
    one more. A draft that is accepted less often than onward / token_ms does not pay."""

    def __init__(self, latency: Latency) -> None:
        self._latency = latency
        self._table: Sequence[float] = ()
        self.steps_ms: Sequence[float] = ()
        """Milliseconds of a step with 0, 1, 2, ... drafts."""
        self._roots = 1
        self.otherwise_ms = float("inf")
        """Cost of a token in milliseconds if something else drafts; infinite if nothing does."""
        self.begin(0)

    def begin(self, context: int) -> None:
        """Begin a reply, at the pace of plain decoding."""
        self.look(context)
        self._start()

    def look(self, context: int, roots: int = 1) -> None:
        """Take the costs after `context` tokens, for `roots` replies that share the forward."""
        table = self._latency.step_ms(context)
        if table is self._table and roots == self._roots:
            return
        joined, self._table, self._roots = roots != self._roots, table, roots
        self.steps_ms = step_ms = table[min(roots, len(table)) - 1 :]
        self.extra = extra = np.asarray(step_ms) - step_ms[0]
        self.onward = _onward(extra)
        if joined:
            self._start()

    def _start(self) -> None:
        self._ms, self._tokens = self.steps_ms[0] * MEMORY, MEMORY * self._roots

    def note(self, width: int, tokens: int, steps: int = 1) -> None:
        """Note that a step over `width` positions committed `tokens`, or that `steps` steps did together."""
        keep = (1.0 - 1.0 / (MEMORY * self._roots)) ** tokens
        self._ms = self._ms * keep + self.step_ms(width - self._roots) * steps
        self._tokens = self._tokens * keep + tokens

    @property
    def token_ms(self) -> float:
        return min(self._ms / self._tokens, self.steps_ms[0] / self._roots, self.otherwise_ms)

    def step_ms(self, drafts: int) -> float:
        """Return how many milliseconds a step over so many drafts takes."""
        return self.steps_ms[min(drafts, len(self.steps_ms) - 1)]

    @property
    def most(self) -> int:
        return self.onward.size

    @property
    def free(self) -> bool:
        """Return whether rows cost nothing. If a width is fixed, all proposers are asked."""
        return not self.extra.any()
