"""Measure this machine: what steps of a model cost, and how fast memory is read."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hierchat.drafting.draft_cost import WIDEST, LatencyCurve
from hierchat.engine.runner import CachedSequence
from hierchat.jit import Kernels

PROBES = (1, 8, 2, 4, 16, 32, 3, 6, 12, 24)
"""Widths to measure after loading, the most telling first."""
ROUNDS = 3
SPREAD = 7919
"""Distance of the probes' tokens: a prime."""


def measure(curve: LatencyCurve, sequence: CachedSequence, seconds: float = 0.3) -> None:
    """Measure forwards at the present context, and fill the curve; nothing is committed. The fastest of several
    rounds over all widths counts; at least two rounds, because the first forward over a width may have to prepare
    something."""
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
    """Measure the rate of the fastest eighth of reads, which other programs seldom disturb. Raises MemoryError."""
    return max(reading_rates(threads, size, passes, threads))


def reading_rates(threads: int, size: int, passes: int, at_once: int) -> list[float]:
    """Measure GB a second of each of so many reads, in turn, after one that is not counted. Raises MemoryError."""
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
