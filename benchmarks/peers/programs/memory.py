"""Measure how much memory a process took."""

from __future__ import annotations

import contextlib
import pathlib
import sys


def peak_mb() -> float | None:
    """Return the most memory that this process held so far, in megabytes; None where the system does not say."""
    with contextlib.suppress(OSError):  # Linux: its ru_maxrss begins with what the parent held
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1e3, 1)
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, kilobytes elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)
