"""llama.cpp in a virtual environment of its own, in the cache: built once, and it shares no package with hierchat."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from hierchat.bench.errors import ArmError
from hierchat.config import cache_dir

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
BUILD = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"
"""For this processor, and without the part that sees pictures."""
BUILD_SECONDS = 7200


def llama_cpp_python(say: Callable[[str], None]) -> Path:
    """The Python that has llama.cpp; made where there is none, which needs a C++ compiler and minutes.

    Raises ArmError that says why it cannot be had.
    """
    folder = cache_dir() / "peers" / f"{PACKAGE}-{VERSION}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not _has_it(python):
            say(f"Building {PACKAGE} {VERSION} in {folder}. This takes minutes, once.")
            _build(folder, python)
    return python


def _has_it(python: Path) -> bool:
    """Whether an earlier build is whole."""
    check = f"import llama_cpp; assert llama_cpp.__version__ == {VERSION!r}"
    return python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0


def _build(folder: Path, python: Path) -> None:
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--no-input", f"{PACKAGE}=={VERSION}"],
    )
    environment = {**os.environ, "CMAKE_ARGS": f"{BUILD} {os.environ.get('CMAKE_ARGS', '')}"}
    log = folder.parent / f"{folder.name}.log"
    with log.open("w") as written:
        for command in commands:
            try:
                done = subprocess.run(
                    command, stdout=written, stderr=written, env=environment, timeout=BUILD_SECONDS
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ArmError(f"{PACKAGE} {VERSION} could not be built: {error}") from error
            if done.returncode:
                raise ArmError(f"{PACKAGE} {VERSION} could not be built; {log} says why")
    if not _has_it(python):
        raise ArmError(f"{PACKAGE} {VERSION} was built, but cannot be imported by {python}")
