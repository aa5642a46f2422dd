"""How much memory there is, and how much of it this process has."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import psutil


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
