"""What drafts cost, in tokens: the milliseconds that rows add to a forward over the milliseconds that a token takes.

A draft pays when its expected tokens are worth more than its row. A token is worth the time that one takes at the
present pace, and never more than a plain step. Within a copy tokens are cheap, so a draft is worth less there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

MEMORY = 6.0
"""Tokens over which the pace is averaged."""


class Latency(Protocol):
    """Costs on this machine, as the engine measures them."""

    def step_ms(self, context: int) -> Sequence[float]:
        """Milliseconds of a step over 1, 2, ... positions behind `context` tokens; never falling. The same object as
        long as nothing changed."""
        ...


class FreeRows:
    """Every row is free up to a fixed width."""

    def __init__(self, width: int) -> None:
        self._step_ms = [1.0] * width

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


class DraftCost:
    """Prices of drafts at the present pace: `extra` [n] are the milliseconds that n drafts add to a step, `onward` [n]
    the least that one more can come at. A draft that is accepted less often than onward / token_ms does not pay."""

    def __init__(self, latency: Latency) -> None:
        self._latency = latency
        self._table: Sequence[float] = ()
        self._step_ms: Sequence[float] = ()
        self._roots = 1
        self.otherwise_ms = float("inf")
        """What a token costs where something else drafts."""
        self.begin(0)

    def begin(self, context: int) -> None:
        """A new reply: its pace begins as that of plain decoding."""
        self.look(context)
        self._start()

    def look(self, context: int, roots: int = 1) -> None:
        """Take the costs behind `context` tokens. `roots`: replies that share the forward, each with a row of its own
        beside its drafts; their pace is that of all together."""
        table = self._latency.step_ms(context)
        if table is self._table and roots == self._roots:
            return
        joined, self._table, self._roots = roots != self._roots, table, roots
        self._step_ms = step_ms = table[min(roots, len(table)) - 1 :]
        self.extra = extra = np.asarray(step_ms) - step_ms[0]
        # The cheapest way on from n drafts: rows may come in groups, of which all but the first are free.
        more = np.arange(1, extra.size)
        self.onward = np.array(
            [((extra[n + 1 :] - extra[n]) / more[: extra.size - 1 - n]).min() for n in range(extra.size - 1)]
        )
        if joined:
            self._start()

    def _start(self) -> None:
        self._ms, self._tokens = self._step_ms[0] * MEMORY, MEMORY * self._roots

    def note(self, width: int, tokens: int) -> None:
        """A step over `width` positions brought `tokens`."""
        keep = (1.0 - 1.0 / (MEMORY * self._roots)) ** tokens
        self._ms = self._ms * keep + self.step_ms(width - self._roots)
        self._tokens = self._tokens * keep + tokens

    @property
    def token_ms(self) -> float:
        """What a token is worth."""
        return min(self._ms / self._tokens, self._step_ms[0] / self._roots, self.otherwise_ms)

    def step_ms(self, drafts: int) -> float:
        """What a step over so many drafts costs."""
        return self._step_ms[min(drafts, len(self._step_ms) - 1)]

    @property
    def most(self) -> int:
        """Drafts whose costs are known."""
        return self.onward.size
