"""Time decoding, in the same way for every program."""

from __future__ import annotations

import time
from typing import Any


class Steps:
    """Record how long each step took; the prompt comes first. A streamer to transformers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last: float | None = None

    def put(self, value: Any) -> None:
        now = time.perf_counter()
        if self.last is not None:
            self.seconds.append(now - self.last)
        self.last = now

    def end(self) -> None:
        pass


def evened(seconds: list[float]) -> dict[str, Any]:
    """Return figures of steps; the first read the prompt as well, and counts as long as the others on average."""
    first, later = seconds[0], sum(seconds[1:])
    steps = len(seconds)
    return {
        "seconds": later * steps / (steps - 1) if steps > 1 else first,
        "first_seconds": first,
        "forwards": steps,
    }


class Clock:
    """Record when the prompt was read, when the first token came, when the last; a streamer to transformers."""

    def __init__(self) -> None:
        self.marks = [time.perf_counter()]
        self.first: float | None = None

    def read(self) -> None:
        self.marks.append(time.perf_counter())

    def put(self, value: Any) -> None:
        # transformers streams the prompt first, [1, length], then tokens, [1]
        if self.first is None and getattr(value, "ndim", 1) == 1:
            self.first = time.perf_counter()

    def end(self) -> None:
        if len(self.marks) < 3:  # transformers says so, too
            self.marks.append(time.perf_counter())

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        began, read, ended = self.marks
        return {"tokens": tokens, "seconds": ended - read, "first_seconds": (self.first or ended) - began}


def common_prefix(held: list[int], prompt: list[int]) -> int:
    """Count the tokens at the beginning that need not be read again."""
    for at, (one, other) in enumerate(zip(held, prompt, strict=False)):
        if one != other:
            return at
    return min(len(held), len(prompt))
