"""Report machine, versions, kernels, models, database and log, as text to paste into a report (`hierchat doctor`)."""

import json
import os
import platform
import re
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
from packaging.requirements import Requirement

from hierchat import __version__
from hierchat.config import cache_dir, config_dir, data_dir, database_file
from hierchat.engine.backends import IMPLEMENTATIONS
from hierchat.engine.cpu.forward import cores
from hierchat.engine.cpu.llvm import is_compiled, kernel
from hierchat.engine.fallback import attempt_records
from hierchat.jit import INSTRUCTIONS, supported
from hierchat.logs import log_path
from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import Catalogue, ModelEntry, read_catalogue
from hierchat.models.device_memory import cuda_driver
from hierchat.models.fetch.bring import status
from hierchat.models.formats.layouts import LAYOUTS
from hierchat.models.load.check import require_memory, require_runnable
from hierchat.models.progress import BrokenFileError, ModelError
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


LARGEST_ERROR = 2e-5
"""Largest error of a matrix product against float64; activations are rounded to 16 bits."""
_KERNEL_ADVICE = (
    "Delete the folder `kernels` in the cache, so that they are compiled anew. If it stays so, set "
    "HIERCHAT_INSTRUCTIONS=generic and report it."
)


def kernels() -> list[Finding]:
    """Try a product of each block type against float64, and the self-test of whole forwards."""
    before = "were compiled" if is_compiled() else "had to be compiled"
    try:
        from hierchat.engine.cpu.trial import trial_product, trial_runner

        found = [Finding(f"kernels {before}: {kernel.folder.name}")]
        for name in LAYOUTS:
            error, same = trial_product(name)
            right = same and error <= LARGEST_ERROR
            rows = "the same bits at every height" if same else "other bits at another height"
            text = f"{name}: {error:.0e} from float64, {rows}"
            found.append(Finding(text, "" if right else _KERNEL_ADVICE))
        runner = trial_runner()
        runner.team.close()
    except Exception as error:  # whatever keeps them from running belongs into the report
        return [Finding(f"kernels cannot run: {type(error).__name__}", _KERNEL_ADVICE)]
    said = "passed" if runner.exact else "failed"
    return [*found, Finding(f"self-test of forwards: {said}", "" if runner.exact else _KERNEL_ADVICE)]


MOST = 5
"""Errors of the log that are shown."""
LATEST_BYTES = 200_000
_HEAD = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (WARNING|ERROR|CRITICAL) ([\w.]+): ")
_KIND = re.compile(r"[A-Za-z_][\w.]*(?: [A-Z][A-Z0-9_]*)?")


def errors(path: Path | None = None) -> list[Finding]:
    """Return the latest errors of the log, oldest first: when, where, of what kind, but not what they say."""
    path = path or log_path()
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LATEST_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return [Finding("no log: no error was recorded")]
    except OSError as error:
        return [Finding(f"the log cannot be read ({error.strerror})", f"Make {path} readable.")]
    found = []
    for number, line in enumerate(lines):
        if head := _HEAD.match(line):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            kind = f": {following}" if _KIND.fullmatch(following) else ""
            found.append(Finding(f"{head[1]} {head[2]} {head[3]}{kind}"))
    return found[-MOST:] or [Finding("no errors in the log")]


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


def models(device: str) -> list[Finding]:
    """Return for each model whether it is on disk and can run; or what is wrong with the catalogue."""
    try:
        catalogue = read_catalogue()
    except ModelError as error:
        return [Finding("the catalogue cannot be read", str(error))]
    return [_model(catalogue, entry, device) for entry in catalogue.models.values()]


def _model(catalogue: Catalogue, entry: ModelEntry, device: str) -> Finding:
    name = f"{entry.name} (the default)" if entry.name == catalogue.default else entry.name
    try:
        there = status(entry, device)
        disk = f"{gigabytes(there.size)} here" if there.size else "not here"
        if there.size and not there.present:
            disk += ", not ready"
        # Of what is not here, no file is fetched to find out.
        if there.present:
            require_runnable(entry, device)
        else:
            require_memory(entry, device)
    except BrokenFileError as error:
        return Finding(f"{name}: broken", str(error))
    except (ModelError, OSError, ValueError) as error:
        return Finding(f"{name}: cannot run here. {str(error).split(' What would fit')[0]}")
    return Finding(f"{name}: {disk}, {'can run' if there.present else 'memory suffices'}")


PACKAGES = (
    "gradio", "torch", "transformers", "bitsandbytes", "accelerate", "sqlite-utils", "psutil", "numba", "llvmlite",
    "numpy", "tokenizers", "huggingface-hub", "gguf", "pydantic",
)  # fmt: skip


def versions() -> list[Finding]:
    """Return findings for the program, its packages, and each missing or unexpected package, without imports."""
    wanted = _wanted()
    there = {name: version_of(name) for name in dict.fromkeys((*PACKAGES, *wanted))}
    shown = ", ".join(f"{name} {there[name]}" for name in PACKAGES if there[name])
    found = [
        Finding(f"hierchat {__version__}, Python {platform.python_version()} ({platform.machine()})"),
        Finding(shown),
    ]
    for name, version in there.items():
        requirement = wanted.get(name)
        if version is None and (requirement or not wanted):
            found.append(Finding(f"{name}: missing", f"Install it: pip install {requirement or name}"))
        elif version and requirement and not requirement.specifier.contains(version, prereleases=True):
            text = f"{name} {version}: hierchat asks for {requirement}"
            found.append(Finding(text, f'pip install "{requirement}"'))
    return found


def _wanted() -> dict[str, Requirement]:
    """Return the requirements of the installed hierchat by name; empty in a clone that was not installed."""
    try:
        lines = metadata.requires("hierchat") or []
    except metadata.PackageNotFoundError:
        return {}
    wanted = map(Requirement, lines)
    return {
        one.name.lower(): one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})
    }


def version_of(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def print_report(given: Path | None) -> int:
    """Print the report as a list in Markdown, what is wrong at its end with what to do; return 1 if anything
    is. `given`: the database that the user named."""
    path = (given or database_file()).expanduser().absolute()
    devices = gpus()
    device = "cuda" if any("GB" in one.text or "MB" in one.text for one in devices) else "cpu"
    sections: dict[str, Callable[[], list[Finding]]] = {
        "Program": versions,
        "Machine": machine,
        "GPU": lambda: devices,
        "Computed by": computed,
        "Kernels": kernels,
        "Models": lambda: models(device),
        "Database": lambda: database(path, named=given is not None),
        "Log": errors,
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
