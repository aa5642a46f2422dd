"""What machine a figure was measured on."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from hierchat import __version__
from hierchat.runtime.machine import processor


def machine() -> dict[str, str | int | float]:
    """Processor, cores, memory (GiB), the versions that matter and the revision of this program."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "processor": processor(),
        "cores": psutil.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "hierchat": __version__,
        "revision": _revision(),
    }


def _revision() -> str:
    """The commit, and whether the program differs from it; empty outside a clone."""
    package = Path(__file__).parents[2]
    git = ["git", "-C", str(package)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True)
    except OSError:
        return ""
    if commit.returncode:
        return ""
    return commit.stdout.strip() + (" with changes" if changed.stdout.strip() else "")
