"""Forwards of several programs in turn: by width and context, and reading a prompt."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import numpy as np

from hierchat.bench.peers.arm import PeerArm
from hierchat.engine.runner import CachedSequence

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
REPEATS = 31
READINGS = 5
PAUSE = 0.05
"""Seconds before the turn of a program: threads of the one before may go on waiting for work for a moment."""


class Program(Protocol):
    """What computes forwards of a model. Slots stay as they are between two calls with the same prompt."""

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        """Milliseconds of a forward over each segment, a chain behind the prompt, with logits for all its positions."""
        ...

    def reading(self, prompt: Sequence[int]) -> float:
        """Milliseconds of reading a prompt into empty slots."""
        ...


class Ours:
    """Our own engine."""

    def __init__(self, sequence: CachedSequence) -> None:
        self._sequence = sequence

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        if self._sequence.tokens != list(prompt):
            self.reading(prompt)
        found = []
        for tokens in segments:
            began = time.perf_counter()
            self._sequence.forward(tokens, range(-1, len(tokens) - 1), padded=len(tokens) > 1)
            found.append((time.perf_counter() - began) * 1e3)
        return found

    def reading(self, prompt: Sequence[int]) -> float:
        self._sequence.rollback(0)
        began = time.perf_counter()
        for first in range(0, len(prompt), 128):
            self._sequence.read(prompt[first : first + 128])
        return (time.perf_counter() - began) * 1e3


class Theirs:
    """Another program, one of TIMED."""

    def __init__(self, peer: PeerArm) -> None:
        self._peer = peer

    def forwards(self, prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[float]:
        said = self._peer.ask(do="forwards", prompt=list(prompt), segments=[list(one) for one in segments])
        return list(said["ms"])

    def reading(self, prompt: Sequence[int]) -> float:
        return float(self._peer.ask(do="reading", prompt=list(prompt))["ms"])


def side_by_side(
    programs: Mapping[str, Program], contexts: Sequence[int], prompt: int, vocabulary: int
) -> dict[str, dict[str, Any]]:
    """By program: `contexts`, the median milliseconds of a forward by context and width, and how long a prompt of
    `prompt` tokens takes. Programs take turns, and so do widths, so that a disturbance falls on all of them."""
    times: dict[tuple[str, int, int], list[float]] = {}
    segments = [random_tokens(width, vocabulary) for width in WIDTHS]
    for context in contexts:
        text = random_tokens(context, vocabulary)
        for _ in range(REPEATS):
            for name, program in programs.items():
                time.sleep(PAUSE)
                for width, ms in zip(WIDTHS, program.forwards(text, segments), strict=True):
                    times.setdefault((name, context, width), []).append(ms)
    readings: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(READINGS):
        for name, program in programs.items():
            time.sleep(PAUSE)
            readings[name].append(program.reading(random_tokens(prompt, vocabulary)))
    return {
        name: {
            "prompt_tokens": prompt,
            "prompt_ms": round(median(readings[name]), 1),
            "prompt_tokens_per_second": round(prompt / median(readings[name]) * 1e3, 1),
            "contexts": {
                str(context): {str(width): round(median(times[name, context, width]), 2) for width in WIDTHS}
                for context in contexts
            },
        }
        for name in programs
    }


def random_tokens(count: int, vocabulary: int) -> list[int]:
    """The same for a count each time."""
    return np.random.default_rng(count).integers(0, vocabulary, count).tolist()
