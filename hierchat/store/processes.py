"""Name a process, and tell whether it still runs: so an interrupted reply is recognised."""

import os
from pathlib import Path

import psutil


def this_process() -> tuple[int, float]:
    """Return this process's id and when it was started: together they name it, for ids are used again."""
    return os.getpid(), _began(psutil.Process())


def _began(process: psutil.Process) -> float:
    """Return a process's start: on Linux by boot and ticks, independent of the clock, else as Unix time."""
    try:
        ticks = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text()[:5], 16)
    except (OSError, ValueError, IndexError):
        return process.create_time()
    return (boot + 10) * 1e9 + ticks


def is_running(pid: int, started: float) -> bool:
    """Return whether that process still runs. One that was killed but not yet reaped by its parent does not."""
    try:
        process = psutil.Process(pid)
        # Earlier versions noted the Unix time on Linux, too, which derives it from the clock.
        now = _began(process) if started > 1e10 else process.create_time()
        return abs(now - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
