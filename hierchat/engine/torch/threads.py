"""How many threads a forward on the CPU gets: all of them, or one while something else uses the cores.

A forward is some hundred short parallel regions, each as slow as its slowest thread. Where a browser or another
program holds a core, waiting for the thread that lost it costs up to ten times the forward; one thread alone is then
faster (docs/benchmarks.md). The number of threads changes no bit: the target's self-test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SLOW = 2.5
"""A forward this many times slower than the fastest of its width was disturbed."""
DISTURBED = 2
"""Disturbed forwards in a row after which one thread goes on alone."""
FIRST_REST, LONGEST_REST = 16, 256
"""Forwards that one thread then does; doubled each time the cores turn out to be still in use."""


class Threads:
    """Watches forwards and sets torch's threads. Call `enter` in the thread that computes, before each forward."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: None for all of them."""
        self.most = most or torch.get_num_threads()
        self._fastest: dict[int, float] = {}
        self._disturbed = self._quiet = self._alone = 0
        self._rest = FIRST_REST

    @property
    def now(self) -> int:
        """Threads for the next forward."""
        return 1 if self._alone else self.most

    def enter(self) -> None:
        """Each Python thread has its own setting."""
        if torch.get_num_threads() != self.now:
            torch.set_num_threads(self.now)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One thread for what is within."""
        self.most, most = 1, self.most
        try:
            yield
        finally:
            self.most = most

    def note(self, width: int, ms: float) -> None:
        """A forward over `width` positions took `ms`."""
        if self.most == 1:
            return
        if self._alone:
            self._alone -= 1
            return
        fastest = self._fastest[width] = min(ms, self._fastest.get(width, ms))
        if ms <= SLOW * fastest:
            self._disturbed = 0
            self._quiet += 1
            if self._quiet >= FIRST_REST:
                self._rest = FIRST_REST
            return
        self._quiet = 0
        self._disturbed += 1
        if self._disturbed >= DISTURBED:
            self._disturbed, self._alone = 0, self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
