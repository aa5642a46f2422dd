"""How fast all threads together read memory: what a forward of one position is bound by."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.jit import Kernels

BYTES = 2**30
"""More than any cache holds."""
PASSES = 9
PIECES = 8
"""Of each thread: one that is late leaves pieces to the others."""
kernel = Kernels(__file__)


@kernel
def _sum(words: Any) -> Any:
    total = np.int64(0)
    for place in range(len(words)):
        total += words[place]
    return total


def gigabytes_per_second(threads: int, size: int = BYTES, passes: int = PASSES) -> float:
    """Of reading `size` bytes with `threads` threads: median of `passes`, after one that is not counted. Raises
    MemoryError."""
    return median(_rates(threads, size, passes, threads * PIECES))


def fastest_gigabytes_per_second(threads: int, size: int, passes: int) -> float:
    """The same of the fastest eighth that was read: other programs that compute leave such moments, seldom a whole
    pass. Raises MemoryError."""
    return max(_rates(threads, size, passes, threads))


def _rates(threads: int, size: int, passes: int, at_once: int) -> list[float]:
    """GB a second of each reading of so many pieces, all of them in turn."""
    pieces = np.array_split(np.ones(size // 8, np.int64), threads * PIECES)
    with ThreadPoolExecutor(threads) as pool:
        add_up(pieces, pool)
        rates = []
        for place in [*range(0, len(pieces), at_once)] * passes:
            read = pieces[place : place + at_once]
            began = time.perf_counter()
            add_up(read, pool)
            rates.append(sum(one.nbytes for one in read) / (time.perf_counter() - began) / 1e9)
    return rates


def add_up(pieces: Sequence[NDArray[np.int64]], pool: ThreadPoolExecutor) -> int:
    """The sum of all numbers: each is read once."""
    return sum(pool.map(_sum, pieces))
