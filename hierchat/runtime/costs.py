"""What a model's steps cost on this machine: measured after loading, refined by every reply, kept for the next run."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from hierchat.engine.latency import LatencyCurve, measure
from hierchat.engine.runner import CachedSequence
from hierchat.models.load.loaded import LoadedModel
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
    from hierchat.engine.cpu.team import cores
    from hierchat.engine.selftest import cache_key

    device = None
    if not loaded.device.startswith("cpu"):
        import torch  # takes seconds, and memory: only where it computes

        from hierchat.engine.torch.runner import gpu

        device = gpu(torch.device(loaded.device))
    return cache_key(loaded.model_key, f"{loaded.backend} {cores()} cores", device)


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
