"""Report machine, versions, kernels and database, as text to paste into a report (`hierchat doctor`)."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import llvmlite.binding
import psutil

from hierchat import __version__
from hierchat.config import cache_dir, config_dir, data_dir, database_file
from hierchat.engine.backends import IMPLEMENTATIONS
from hierchat.engine.cpu.forward import cores
from hierchat.engine.cpu.llvm import is_compiled, kernel
from hierchat.engine.fallback import attempt_records
from hierchat.jit import INSTRUCTIONS, supported
from hierchat.models.cache import gigabytes
from hierchat.models.device_memory import cuda_driver
from hierchat.runtime.costs import processor
from hierchat.store.health import examine


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice`: what to do; only if something is wrong."""

    text: str
    advice: str = ""


def anonymous(text: str) -> str:
    """Return the text with "~" for the home folder, which names the user."""
    for home in sorted({str(Path.home()), str(Path.home().resolve())}, key=len, reverse=True):
        if len(home) > 1:
            text = text.replace(home, "~")
    return text


def computed() -> list[Finding]:
    """Return a finding for each model and device with which transformers computed."""
    found = []
    for one in attempt_records():
        text = f"{one.model}, on {one.device}: {IMPLEMENTATIONS.get(one.implementation, 'nothing')}"
        if one.inexact:
            text += f"; a draft may change a word at a near tie ({one.inexact})"
        for name, reason in one.failed.items():
            text += f"; {IMPLEMENTATIONS.get(name, name)} failed: {reason}"
        advice = "Run `python -m benchmarks gpu` in a clone, and report what it prints." if one.failed else ""
        found.append(Finding(text, advice))
    return found or [Finding("no model was computed by transformers yet")]


ADVICE = {
    "missing": "Name the database with --db as the chat was started.",
    "damaged": "Restore a backup, or start with another file: --db. This one was left as it is.",
    "newer": "Update hierchat: a newer one wrote this file.",
    "foreign": "Name another file with --db: this one belongs to another program.",
    "unreadable": "Make the file and its folder readable, and close other programs that hold it.",
}


def database(path: Path, *, named: bool) -> list[Finding]:
    """Examine the database, without reading its texts. `named`: the user said that it is there."""
    health = examine(path)
    if health.state == "missing" and not named:
        return [Finding(f"{path}: not there yet; the first chat makes it")]
    detail = f" ({health.detail})" if health.detail else ""
    text = f"{path}: {health.state}{detail}, {gigabytes(health.size)}, schema {health.schema or 'unknown'}"
    found = [Finding(text, ADVICE.get(health.state, ""))]
    if rows := ", ".join(f"{name} {count:,}" for name, count in health.rows.items()):
        found.append(Finding(f"rows: {rows}"))
    if path.parent.is_dir():
        free = shutil.disk_usage(path.parent).free
        advice = "Free some space: deleting rewrites the whole file, for which there is no room."
        short = free < max(2 * health.size, 64 * 2**20)
        found.append(Finding(f"free beside it: {gigabytes(free)}", advice if short else ""))
    return found


_KERNEL_ADVICE = (
    "Delete the folder `kernels` in the cache, so that they are compiled anew. If it stays so, set "
    "HIERCHAT_INSTRUCTIONS=generic and report it."
)


def kernels() -> list[Finding]:
    """Run the self-test of the kernels over a tiny model."""
    before = "were compiled" if is_compiled() else "had to be compiled"
    try:
        from hierchat.engine.cpu.runner import trial_runner

        runner = trial_runner()
        runner.team.close()
    except Exception as error:  # whatever keeps them from running belongs into the report
        return [Finding(f"kernels cannot run: {type(error).__name__}", _KERNEL_ADVICE)]
    said = "passed" if runner.exact else "failed"
    return [
        Finding(f"kernels {before}: {kernel.folder.name}"),
        Finding(f"self-test of forwards: {said}", "" if runner.exact else _KERNEL_ADVICE),
    ]


LEAST_DISK = 1_000_000_000
"""Free bytes below which a download or a long conversation may fail."""
LEAST_MEMORY = 1_000_000_000
GPU_SECONDS = 90
FEATURES = (
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "neon", "dotprod", "i8mm",
    "sve",
)  # fmt: skip
"""Instruction sets that tell how fast a processor can be."""
_GPUS = (
    "import json, torch; from hierchat.models.device_memory import why_no_cuda; "
    "print(json.dumps([why_no_cuda(), [[torch.cuda.get_device_name(i), torch.cuda.mem_get_info(i)[1]] "
    "for i in range(torch.cuda.device_count())]]))"
)


def machine() -> list[Finding]:
    """Return findings about the machine, and about what is short of memory or disk."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    low = memory.available < LEAST_MEMORY
    can = llvmlite.binding.get_host_cpu_features()
    features = [name for name in FEATURES if can.get(name)]
    found = [
        Finding(f"system: {platform.platform()}"),
        Finding(f"processor: {processor()}, {cores()} cores used of {psutil.cpu_count()} threads"),
        Finding(f"features: {', '.join(features) or 'none that matter'}"),
        Finding(f"kernels for: {INSTRUCTIONS} (it can do {', '.join(supported())})"),
        Finding(
            f"memory: {gigabytes(memory.available)} free of {gigabytes(memory.total)}, "
            f"swap {gigabytes(swap.used)} used of {gigabytes(swap.total)}",
            "Close other programs: little memory is free." if low else "",
        ),
    ]
    folders = {"data": data_dir(), "cache": cache_dir(), "configuration": config_dir()}
    for name, folder in folders.items():
        there = next((place for place in (folder, *folder.parents) if place.exists()), None)
        try:
            free = shutil.disk_usage(there or Path.cwd()).free
        except OSError as error:
            found.append(Finding(f"{name}: {folder} ({error.strerror})", f"{folder} cannot be read."))
        else:
            advice = f"Free some space: {folder} has little left." if free < LEAST_DISK else ""
            found.append(Finding(f"{name}: {folder}, {gigabytes(free)} free", advice))
    if switches := sorted(name for name in os.environ if name.startswith(("HIERCHAT_", "NUMBA_"))):
        found.append(Finding(f"set in the environment: {', '.join(switches)}"))
    return found


def gpus() -> list[Finding]:
    """Return CUDA devices as torch sees them, in a process of its own: torch takes seconds, and memory."""
    if not cuda_driver():
        return [Finding("CUDA: no driver")]
    if not find_spec("torch"):
        return [Finding("CUDA: a driver, and no torch", "Install hierchat anew: torch is missing.")]
    try:
        command = [sys.executable, "-c", _GPUS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GPU_SECONDS)
        why, devices = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [Finding(f"CUDA: torch did not answer ({type(error).__name__})", "Check the GPU's driver.")]
    found = [Finding(f"CUDA: {name}, {gigabytes(size)}") for name, size in devices]
    return found or [Finding("CUDA: no device", f"A driver is here, but {why}.")]


PACKAGES = (
    "gradio", "torch", "transformers", "bitsandbytes", "accelerate", "sqlite-utils", "psutil", "numba", "llvmlite",
    "numpy", "tokenizers", "huggingface-hub", "gguf", "pydantic",
)  # fmt: skip


def versions() -> list[Finding]:
    """Return the versions of the program and its packages, without imports."""
    shown = ", ".join(f"{name} {version}" for name in PACKAGES if (version := version_of(name)))
    return [
        Finding(f"hierchat {__version__}, Python {platform.python_version()} ({platform.machine()})"),
        Finding(shown),
    ]


def version_of(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def print_report(given: Path | None) -> int:
    """Print the report in Markdown, at its end what to do; return 1 if anything is wrong. `given`: the database."""
    path = (given or database_file()).expanduser().absolute()
    sections: dict[str, Callable[[], list[Finding]]] = {
        "Program": versions,
        "Machine": machine,
        "GPU": gpus,
        "Computed by": computed,
        "Kernels": kernels,
        "Database": lambda: database(path, named=given is not None),
    }
    wrong: list[Finding] = []
    for name, look in sections.items():
        print(f"- **{name}**", flush=True)
        try:
            found = look()
        except Exception as error:  # the rest of the report is still wanted
            text = f"{name.lower()} could not be looked at: {type(error).__name__}"
            found = [Finding(text, "Report this.")]
        for one in found:
            print(anonymous(f"  - {one.text}"), flush=True)
            wrong += [one] if one.advice else []
    print("- **What to do**" if wrong else "- **Nothing is wrong**")
    for one in wrong:
        print(anonymous(f"  - {one.text.split(',')[0]}. {one.advice}"))
    return 1 if wrong else 0
