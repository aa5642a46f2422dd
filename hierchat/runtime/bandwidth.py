"""How fast this machine reads memory: measured in a fifth of a second, kept in the cache folder. A forward of one token
reads all weights once, so no model can decode faster than that allows."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from hierchat.config import cache_dir
from hierchat.engine.cpu.team import cores
from hierchat.models.cache import write_whole

BYTES, PASSES = 2**28, 5
"""Of the measurement: a fifth of a second."""


def kept_bandwidth() -> float | None:
    """Bytes a second; None where it was not measured with as many cores as there are now."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads(_file().read_text(encoding="utf-8"))
        if said["cores"] == cores():
            return float(said["bytes_per_second"])
    return None


def measure_bandwidth() -> float:
    """Bytes a second, kept for the next start. The model must not compute meanwhile. Other programs may: so the highest
    that was ever measured counts. Raises MemoryError."""
    from hierchat.engine.bandwidth import gigabytes_per_second

    found = max(1e9 * gigabytes_per_second(cores(), BYTES, PASSES), kept_bandwidth() or 0.0)
    with suppress(OSError):  # measured again next time
        write_whole(_file(), json.dumps({"cores": cores(), "bytes_per_second": found}).encode())
    return found


def _file() -> Path:
    return cache_dir() / "bandwidth.json"
