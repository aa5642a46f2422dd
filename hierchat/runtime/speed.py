"""How fast a model writes: as it was measured, or, before that, as fast as memory lets one expect."""

from __future__ import annotations

from dataclasses import dataclass

from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.fetch.weights import block_bytes
from hierchat.models.load.check import by_engine
from hierchat.models.memory import dtype_on

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
