"""How fast this machine reads memory: measured once, in some seconds, kept in the cache folder. A forward of one token
reads all weights once, so no model can decode faster than that allows."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from hierchat.config import cache_dir
from hierchat.engine.cpu.team import cores
from hierchat.models.cache import write_whole

BYTES, PASSES = 2**28, 5
"""What one look reads, and how often; it takes a fifth of a second."""
LOOKS = 8
"""Looks of the first measurement."""
DISTURBED = 1.5
"""How many times faster a later look has to be, before what was kept counts as disturbed by another program."""


def kept_bandwidth() -> float | None:
    """Bytes a second; None where it was not measured with as many cores as there are now."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads(_file().read_text(encoding="utf-8"))
        if said["cores"] == cores():
            return float(said["bytes_per_second"])
    return None


def measure_bandwidth(alone: Callable[[], AbstractContextManager[object]]) -> float:
    """Bytes a second, kept from then on: what is expected of models, and the one that is recommended, shall be the same
    tomorrow. So a later look changes it only where the first measurement was clearly disturbed. `alone`: holds what the
    model computes on, for each look. Raises MemoryError."""
    from hierchat.engine.bandwidth import fastest_gigabytes_per_second

    known, found = kept_bandwidth(), 0.0
    for _ in range(1 if known else LOOKS):
        with alone():
            found = max(found, 1e9 * fastest_gigabytes_per_second(cores(), BYTES, PASSES))
    if known and found < DISTURBED * known:
        return known
    with suppress(OSError):  # measured again next time
        write_whole(_file(), json.dumps({"cores": cores(), "bytes_per_second": found}).encode())
    return found


def _file() -> Path:
    return cache_dir() / "bandwidth.json"
