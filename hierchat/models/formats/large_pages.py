"""Weights in large pages. A forward reads every weight once; where pages of 4 KB lie in memory then takes as long to
find as a quarter of the reading itself (docs/log.md)."""

from __future__ import annotations

import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SMALLEST = 32 * 2**20
"""Bytes. What is smaller stays in a processor's caches."""
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PIECE = 32 * 2**20


def in_large_pages(path: Path, begin: int, size: int) -> NDArray[np.uint8] | None:
    """`size` bytes of a file from `begin` on, copied into memory of large pages; None where a mapping of the file does
    as well: it is small, or the system gives no such pages. Raises OSError, or MemoryError where there is no room."""
    if sys.platform != "linux" or size < SMALLEST or not _system_has_them():
        return None
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones get none
    except OSError as error:
        raise MemoryError(f"no room for {size} bytes") from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    file = os.open(path, os.O_RDONLY)

    def copy(first: int) -> None:
        at, end = first, min(first + _PIECE, size)
        while at < end:
            count = os.preadv(file, [memoryview(memory)[at:end]], begin + at)
            if not count:
                raise OSError("it is cut off")
            at += count

    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(copy, range(0, size, _PIECE)))
    finally:
        os.close(file)
    return np.frombuffer(memory, np.uint8)


def _system_has_them() -> bool:
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False
