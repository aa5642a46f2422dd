"""The command: each way in a process of its own, then the block."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hierchat import __version__
from hierchat.doctor.finding import anonymous
from hierchat.doctor.gpu.block import Tried, block
from hierchat.doctor.gpu.one import ANY
from hierchat.models.catalogue import read_catalogue
from hierchat.models.errors import ModelError
from hierchat.models.memory import best_device

EACH_S = 240
"""Seconds after which a way counts as hanging: one that must compile everything first takes one of them."""
NO_GPU = (
    "There is no GPU here that PyTorch can use, so there is nothing to try. If there is one, check its driver, and "
    "that PyTorch was installed for it."
)
PACKAGES = ("torch", "transformers", "triton", "bitsandbytes")
Try = Callable[[str, str, str], dict[str, Any]]
"""(model, rung, device) to figures, or `failed`."""


def try_gpu(model: str | None, device: str | None, tries: Try | None = None) -> int:
    """Prints the block; 1 where a way fails or changes a word, or where there is no GPU. `model`: one that is measured
    beside the default."""
    from hierchat.engine.backends import RUNGS, rung_names
    from hierchat.engine.landings import forget_lost

    tries, named = tries or in_process, device is not None
    try:
        if (device := device or best_device()) == "cpu" and not named:
            print(NO_GPU)
            return 1
        catalogue = read_catalogue()
        default = catalogue.entry(None).name
        chosen = catalogue.entry(model).name
    except ModelError as error:
        print(f"hierchat: {error}", file=sys.stderr)
        return 1
    asked = [(default, rung) for rung in rung_names(device)]
    asked += [(chosen, ANY)] if chosen != default else []
    tried = []
    for number, (name, rung) in enumerate(asked, 1):
        print(
            f"{number} of {len(asked)}: {name}, {RUNGS.get(rung, 'the first that works')} ...",
            file=sys.stderr,
        )
        tried.append(Tried(name, rung, tries(name, rung, device)))
    print(anonymous(block(_device(device), tried)))
    right = all(one.right for one in tried)
    if right:
        forget_lost()  # what hung in an earlier start does so no more
    return 0 if right else 1


def in_process(model: str, rung: str, device: str) -> dict[str, Any]:
    """See one.py. A process that hangs or dies is a failure, too."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "hierchat.doctor.gpu.one", model, rung, device, str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=EACH_S)
        except subprocess.TimeoutExpired:
            return {"failed": f"it did not end within {EACH_S} seconds"}
        try:
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            return {"failed": f"the program ended with {done.returncode}: {last}"}
        return found


def _device(device: str) -> list[str]:
    """What to say of the device."""
    there = {name: _version(name) for name in PACKAGES}
    versions = ", ".join(f"{name} {version}" for name, version in there.items() if version)
    lines = [f"{_name(device)}, {platform.platform()}", f"hierchat {__version__}, {versions}"]
    return [*lines, f"{datetime.now(UTC):%Y-%m-%d}"]


def _name(device: str) -> str:
    import torch

    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        return (
            f"{about.name}, {about.total_memory / 2**30:.0f} GiB, compute capability {about.major}.{about.minor}, "
            f"CUDA {torch.version.cuda}"
        )
    return (
        "the processor in a GPU's place" if device == "cpu" else f"{device} (Apple), {platform.processor()}"
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
