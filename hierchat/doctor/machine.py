"""The machine: system, processor, memory, disks, GPUs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import llvmlite.binding
import psutil

from hierchat.config import cache_dir, config_dir, data_dir
from hierchat.doctor.finding import Finding
from hierchat.engine.cpu.team import cores
from hierchat.jit import INSTRUCTIONS, supported
from hierchat.models.cache import gigabytes
from hierchat.models.memory import cuda_driver

LEAST_DISK = 1_000_000_000
"""Free bytes below which a download or a long conversation may fail."""
LEAST_MEMORY = 1_000_000_000
GPU_SECONDS = 90
FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "neon",
    "sve",
)
"""Of a processor, what tells how fast it can be."""
_GPUS = (
    "import json, torch; print(json.dumps([[torch.cuda.get_device_name(i), torch.cuda.mem_get_info(i)[1]] "
    "for i in range(torch.cuda.device_count())]))"
)


def machine() -> list[Finding]:
    """What it is, and what is short."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    low = memory.available < LEAST_MEMORY
    found = [
        Finding(f"system: {platform.platform()}"),
        Finding(f"processor: {processor()}, {cores()} cores used of {psutil.cpu_count()} threads"),
        Finding(f"features: {', '.join(_features()) or 'none that matter'}"),
        Finding(f"kernels for: {INSTRUCTIONS} (it can do {', '.join(supported())})"),
        Finding(
            f"memory: {gigabytes(memory.available)} free of {gigabytes(memory.total)}, "
            f"swap {gigabytes(swap.used)} used of {gigabytes(swap.total)}",
            "Close other programs: little memory is free." if low else "",
        ),
    ]
    found += [
        _disk(name, folder)
        for name, folder in (("data", data_dir()), ("cache", cache_dir()), ("configuration", config_dir()))
    ]
    if switches := sorted(name for name in os.environ if name.startswith(("HIERCHAT_", "NUMBA_"))):
        found.append(Finding(f"set in the environment: {', '.join(switches)}"))
    return found


def processor() -> str:
    """Its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpus() -> list[Finding]:
    """CUDA devices as torch sees them, asked in a process of its own: torch takes seconds, and memory."""
    if not cuda_driver():
        return [Finding("CUDA: no driver")]
    if not find_spec("torch"):
        return [Finding("CUDA: a driver, and no torch", "Install hierchat anew: torch is missing.")]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _GPUS], capture_output=True, text=True, timeout=GPU_SECONDS
        )
        devices = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [Finding(f"CUDA: torch did not answer ({type(error).__name__})", "Check the GPU's driver.")]
    return [Finding(f"CUDA: {name}, {gigabytes(size)}") for name, size in devices] or [
        Finding("CUDA: no device")
    ]


def _features() -> list[str]:
    there = llvmlite.binding.get_host_cpu_features()
    return [name for name in FEATURES if there.get(name)]


def _disk(name: str, folder: Path) -> Finding:
    there = next((place for place in (folder, *folder.parents) if place.exists()), None)
    try:
        free = shutil.disk_usage(there or Path.cwd()).free
    except OSError as error:
        return Finding(f"{name}: {folder} ({error.strerror})", f"{folder} cannot be read.")
    advice = f"Free some space: {folder} has little left." if free < LEAST_DISK else ""
    return Finding(f"{name}: {folder}, {gigabytes(free)} free", advice)
