"""Measure this machine, and estimate by that how fast it computes a model."""

import json
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hierchat.config import cache_dir
from hierchat.engine.cpu.forward import cores
from hierchat.jit import Kernels
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.device_memory import dtype_on
from hierchat.models.fetch.bring import block_bytes
from hierchat.models.load.check import by_engine
from hierchat.models.runnable import ComputePath
from hierchat.store.records import ModelSpeed

PIECES = 8
"""Pieces for each thread: one that is late leaves pieces to the others."""
kernel = Kernels(__file__)


@kernel
def _sum(words: Any) -> Any:
    total = np.int64(0)
    for place in range(len(words)):
        total += words[place]
    return total


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


BYTES, PASSES = 2**28, 5
"""What one look at the memory's speed reads, and how often; it takes a fifth of a second."""
LOOKS = 8
"""Looks, of which the fastest counts."""


def kept_bandwidth() -> float | None:
    """Return how many bytes of memory are read a second; None where that was not measured with as many cores."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads(_file().read_text(encoding="utf-8"))
        if said["cores"] == cores():
            return float(said["bytes_per_second"])
    return None


def measure_bandwidth(alone: Callable[[], AbstractContextManager[object]]) -> None:
    """Measure the bytes of memory read a second, unless that is known, and keep it. `alone` holds what the model
    computes on during each look. Raises MemoryError."""
    if kept_bandwidth():
        return
    found = 0.0
    for _ in range(LOOKS):
        with alone():
            # Of its reads the fastest eighth, which other programs seldom disturb
            found = max(found, *(1e9 * rate for rate in reading_rates(cores(), BYTES, PASSES, cores())))
    with suppress(OSError):  # measured again next time
        write_whole(_file(), json.dumps({"cores": cores(), "bytes_per_second": found}).encode())


def _file() -> Path:
    return cache_dir() / "bandwidth.json"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


REACHED = 0.75
"""Share of the memory's fastest speed that plain decoding reaches (docs/benchmarks.md: 0.83 of the median speed)."""
MODULES_SECONDS, LFM_SECONDS = 0.06, 0.022
"""Seconds a token of transformers' modules besides reading weights, and of LFM's (2 cores of a Zen 4 EPYC)."""


def expected_speed(
    entry: ModelEntry,
    device: str,
    bandwidth: float | None,
    step: ComputePath | None,
    backend: Backend | None = None,
    weights: int | None = None,
) -> ModelSpeed | None:
    """Estimate plain decoding by the weights that a token reads; None if their size is unknown, or on a GPU.
    `step`: computes the model (models.load.check.expected_step)."""
    size = block_bytes(entry, device, weights)
    if not size or not bandwidth or not device.startswith("cpu"):
        return None
    if not by_engine(entry, device, backend):
        if not entry.size:
            return None
        size = entry.size.parameters * (4 if dtype_on(entry.dtype, device) == "float32" else 2)
    seconds = size * (entry.size.read if entry.size else 1.0) / (REACHED * bandwidth)
    if step not in ("kernels", None):
        seconds += LFM_SECONDS if (entry.kind or "").startswith("lfm") else MODULES_SECONDS
    return ModelSpeed(1 / seconds)
