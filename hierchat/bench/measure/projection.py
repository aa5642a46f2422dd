"""What a forward would take on more cores and faster memory: computed from what was measured here, not measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MACHINES = ((8, 60.0), (8, 100.0), (16, 60.0), (16, 100.0))
"""Cores, and gigabytes of memory that they read in a second."""


def project(curve: Mapping[str, float], threads: int, read: int) -> list[dict[str, Any]]:
    """For each of MACHINES the milliseconds of a forward by width, and what bounds it: "memory" or "cores".

    `curve`: milliseconds measured with `threads` threads; `read`: bytes that a forward reads. A forward takes the
    longer of two: reading these bytes once, and its measured time shared among the cores. It is an estimate: the
    measured time holds what was waiting for memory here, and more cores take longer to meet.
    """
    found = []
    for cores, speed in MACHINES:
        reading = read / speed / 1e6
        computing = {width: ms * threads / cores for width, ms in curve.items()}
        found.append(
            {
                "cores": cores,
                "gigabytes_per_second": speed,
                "ms": {width: round(max(reading, ms), 2) for width, ms in computing.items()},
                "bound": {width: "memory" if reading > ms else "cores" for width, ms in computing.items()},
            }
        )
    return found
