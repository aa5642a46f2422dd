"""Which process writes a reply, and whether it still runs."""

from __future__ import annotations

import os

import psutil


def this_process() -> tuple[int, float]:
    """This process's id and the Unix time of its start: together they name it, for ids are used again."""
    return os.getpid(), psutil.Process().create_time()


def is_running(pid: int, started: float) -> bool:
    """Whether that process still runs. One that was killed but not yet reaped by its parent does not."""
    try:
        process = psutil.Process(pid)
        # Linux derives the start from the clock, which may have been set since.
        return abs(process.create_time() - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
