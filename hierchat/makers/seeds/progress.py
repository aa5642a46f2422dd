"""How far the writing has come: a bar in a terminal, else a line a minute."""

from __future__ import annotations

import sys
import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

EVERY = 60.0
"""Seconds between two lines where there is no terminal."""
PACE = 300.0
"""Seconds over which the rate is measured."""


class WritingProgress:
    """`tokens` of `total` are there. A pause of the process slows the rate for a while, nothing else."""

    def __init__(self, total: int, tokens: int, waiting: int) -> None:
        self.tokens = tokens
        self._total = total
        self._waiting = waiting
        self._past = deque([(time.monotonic(), tokens)])
        self._told = time.monotonic()
        console = Console(stderr=True)
        columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, auto_refresh=False) if console.is_terminal else None
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("", total=total, completed=tokens)
        else:
            print(self._line(), file=sys.stderr, flush=True)

    def add(self, tokens: int, finished: int) -> None:
        """Some were written; shows it now and then."""
        self.tokens += tokens
        self._waiting -= finished
        now = time.monotonic()
        if now - self._told < (1.0 if self._bar else EVERY):
            return
        self._told = now
        self._past.append((now, self.tokens))
        while now - self._past[0][0] > PACE and len(self._past) > 2:
            self._past.popleft()
        if self._bar:
            self._bar.update(self._task, completed=self.tokens, description=self._line(), refresh=True)
        else:
            print(self._line(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """The last word."""
        if self._bar:
            self._bar.stop()
        print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        (since, before), now = self._past[0], time.monotonic()
        rate = (self.tokens - before) / max(now - since, 1e-3)
        left = f", {(self._total - self.tokens) / rate / 60:.0f} min left" if rate > 1 else ""
        return (
            f"{self.tokens:,} of {self._total:,} tokens, {rate:.0f} a second{left}; "
            f"{self._waiting:,} conversations to go"
        )
