"""Report machine, versions, kernels and database, as text to paste into a report (`hierchat doctor`)."""

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from hierchat import __version__
from hierchat.config import cache_dir, config_dir, data_dir, database_file
from hierchat.engine.backends import IMPLEMENTATIONS
from hierchat.engine.cpu.forward import cores
from hierchat.engine.cpu.llvm import is_compiled, kernel
from hierchat.engine.fallback import attempt_records
from hierchat.jit import INSTRUCTIONS, supported
from hierchat.models.cache import gigabytes
from hierchat.models.device_memory import cuda_driver, why_no_cuda
from hierchat.runtime.costs import processor
from hierchat.store.backups import examine


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
    return [Finding(text, ADVICE.get(health.state, ""))]


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


def machine() -> list[Finding]:
    """Return findings about the machine, and about folders that are short of room."""
    memory = psutil.virtual_memory()
    found = [
        Finding(f"system: {platform.platform()}"),
        Finding(f"processor: {processor()}, {cores()} cores used of {psutil.cpu_count()} threads"),
        Finding(f"kernels for: {INSTRUCTIONS} (it can do {', '.join(supported())})"),
        Finding(f"memory: {gigabytes(memory.available)} free of {gigabytes(memory.total)}"),
    ]
    folders = {"data": data_dir(), "cache": cache_dir(), "configuration": config_dir()}
    for name, folder in folders.items():
        there = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(there).free
        advice = f"Free some space: {folder} has little left." if free < LEAST_DISK else ""
        found.append(Finding(f"{name}: {folder}, {gigabytes(free)} free", advice))
    if switches := sorted(name for name in os.environ if name.startswith(("HIERCHAT_", "NUMBA_"))):
        found.append(Finding(f"set in the environment: {', '.join(switches)}"))
    return found


def gpus() -> list[Finding]:
    """Return CUDA devices as torch sees them."""
    if not cuda_driver():
        return [Finding("CUDA: no driver")]
    import torch  # takes seconds

    if why := why_no_cuda():
        return [Finding("CUDA: no device", f"A driver is here, but {why}.")]
    return [
        Finding(f"CUDA: {torch.cuda.get_device_name(at)}, {gigabytes(torch.cuda.mem_get_info(at)[1])}")
        for at in range(torch.cuda.device_count())
    ]


PACKAGES = (
    "gradio", "torch", "transformers", "bitsandbytes", "accelerate", "sqlite-utils", "psutil", "numba", "llvmlite",
    "numpy", "tokenizers", "huggingface-hub", "gguf", "pydantic",
)  # fmt: skip


def versions() -> list[Finding]:
    """Return the versions of the program and its packages, without imports."""
    return [
        Finding(f"hierchat {__version__}, Python {platform.python_version()} ({platform.machine()})"),
        Finding(", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)),
    ]


def print_report(given: Path | None) -> int:
    """Print the report in Markdown, at its end what to do; return 1 if anything is wrong. `given`: the database."""
    path = (given or database_file()).expanduser().absolute()
    sections: dict[str, Callable[[], list[Finding]]] = {
        "Program": versions,
        "Machine": machine,
        "Computed by": computed,
        "Kernels": kernels,
        "Database": lambda: database(path, named=given is not None),
        "GPU": gpus,  # a driver may end this process
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
