"""The machine in words, beside figures that were measured on it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import psutil


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
