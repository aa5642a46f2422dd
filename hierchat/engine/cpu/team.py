"""A team of threads that computes one forward after another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import psutil

Job = Callable[[int], Any]
"""Called by every thread with its rank, 0 for the one that asks; must return in all threads once all is done."""


def cores() -> int:
    """Processor cores that this process may use; a second thread of the same core brings nothing."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


class Team:
    """`threads` threads, the caller one of them. A helper that is late finds the work done and goes back to sleep.

    Between jobs it holds nothing of its owner's, so that a model that is replaced leaves the memory.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or cores()
        self._bells = [threading.Semaphore(0) for _ in range(self.threads - 1)]
        self._job: Job | None = None
        self._closed = False
        for rank, bell in enumerate(self._bells, 1):
            threading.Thread(target=self._help, args=(rank, bell), daemon=True, name=f"engine {rank}").start()

    def run(self, job: Job) -> None:
        """`job` in all threads; returns when it is done."""
        self._job = job
        self._ring()
        try:
            job(0)
        finally:
            self._job = None

    def close(self) -> None:
        """Send the helpers home."""
        self._closed = True
        self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            bell.release()

    def _help(self, rank: int, bell: threading.Semaphore) -> None:
        while not self._closed:
            bell.acquire()
            while bell.acquire(blocking=False):  # only the latest job matters
                pass
            job = self._job
            if job is not None:
                job(rank)
            del job
