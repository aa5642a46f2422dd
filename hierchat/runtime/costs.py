"""What a model's steps cost on this machine: measured after loading, refined by every reply, kept for the next run."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import psutil

from hierchat.config import cache_dir
from hierchat.engine.cpu.forward import cores
from hierchat.engine.latency import LatencyCurve, measure
from hierchat.engine.runner import CachedSequence
from hierchat.models.cache import write_whole
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.device_memory import dtype_on
from hierchat.models.fetch.bring import block_bytes
from hierchat.models.load.check import by_engine
from hierchat.models.load.loaded_model import LoadedModel
from hierchat.store import StoreError

SECONDS, BRIEFLY = 0.3, 0.05
"""Of measuring, where nothing is known and where an earlier run's costs are."""


class Costs(Protocol):
    """Where they are kept: a Store."""

    def latency(self, model_key: str, machine: str) -> bytes | None:
        """What was kept last."""
        ...

    def keep_latency(self, model_key: str, machine: str, value: bytes) -> None:
        """In place of what was kept before."""
        ...


def machine_name(loaded: LoadedModel) -> str:
    """Names what costs depend on: the backend and its code, the processor or GPU, and the cores that we may use."""
    from hierchat.engine.cpu.forward import cores
    from hierchat.engine.selftest import cache_key

    device = None
    if not loaded.device.startswith("cpu"):
        import torch  # takes seconds, and memory: only where it computes

        from hierchat.engine.torch.torch_runner import gpu

        device = gpu(torch.device(loaded.device))
    return cache_key(loaded.model_key, f"{loaded.backend} {loaded.activations} {cores()} cores", device)


def measure_costs(
    latency: LatencyCurve, sequence: CachedSequence, model_key: str, machine: str, costs: Costs | None
) -> None:
    """From what an earlier run found, if any, and some forwards now: these measure how fast the machine is today."""
    seconds = SECONDS
    with suppress(StoreError, ValueError):
        if costs and (state := costs.latency(model_key, machine)):
            latency.restore(state)
            seconds = BRIEFLY
    measure(latency, sequence, seconds)


def keep_costs(latency: LatencyCurve, model_key: str, machine: str, costs: Costs) -> None:
    """For the next start. A store that cannot be written makes that start a little slower."""
    with suppress(StoreError):
        costs.keep_latency(model_key, machine, latency.state())


# How fast this machine reads memory: measured once, in some seconds, kept in the cache folder. A forward of
# one token reads all weights once, so no model can decode faster than that allows.


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
    from hierchat.engine.latency import fastest_gigabytes_per_second

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


# The machine in words, beside figures that were measured on it.


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@cache
def machine_words() -> str:
    """Processor, cores, memory: one line."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{processor()}, {psutil.cpu_count() or 1} cores, {memory:.0f} GB"


# How much memory there is, and how much of it this process has.


@dataclass(frozen=True, slots=True)
class Meter:
    """Of one memory, in bytes."""

    name: str
    """Of the GPU; empty for the machine's own memory."""
    ours: int
    used: int
    """By all programs, this one among them."""
    total: int


def meters() -> list[Meter]:
    """The machine's memory, and that of the GPU that computes, if one does."""
    memory = psutil.virtual_memory()
    ours = psutil.Process().memory_info().rss
    found = [Meter("", ours, max(memory.total - memory.available, ours), memory.total)]
    torch = sys.modules.get("torch")
    # Where nothing computes on it, asking would take hundreds of megabytes of the GPU's memory.
    if torch is not None and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        found.append(Meter(torch.cuda.get_device_name(), torch.cuda.memory_reserved(), total - free, total))
    return found


# How fast a model writes: as it was measured, or, before that, as fast as memory lets one expect.


REACHED = 0.75
"""Of the memory's speed at its fastest, what plain decoding reaches: docs/benchmarks.md has 0.83 of the median speed,
which is some tenth below."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second: of `replies` replies written on this machine, or, with none, what to expect without drafts."""

    per_second: float
    replies: int = 0


def expected_speed(
    entry: ModelEntry,
    device: str,
    bandwidth: float | None,
    backend: Backend | None = None,
    weights: int | None = None,
) -> Speed | None:
    """None where neither files nor catalogue tell how large it is, or on a GPU. `bandwidth`: of main memory, as it was
    measured; `weights`: bytes of a GGUF file's tensors that is not here."""
    size = block_bytes(entry, device, weights)
    if not size or not bandwidth or not device.startswith("cpu"):
        return None
    if not by_engine(entry, device, backend):
        if not entry.size:
            return None
        size = entry.size.parameters * (4 if dtype_on(entry.dtype, device) == "float32" else 2)
    return Speed(REACHED * bandwidth / (size * (entry.size.read if entry.size else 1.0)))
