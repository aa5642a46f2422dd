"""Make virtual environments in the cache, once: they share no package with hierchat."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from hierchat.checks.runs import RequestError
from hierchat.config import cache_dir
from hierchat.models.catalogue import nearest

# What can go wrong with one way of decoding. Each message is for the user.


class ArmError(RequestError):
    """One arm cannot run here, or can no longer; the others go on."""


def unknown(what: str, name: str, known: Iterable[str]) -> RequestError:
    """Return the error about a name that is none of `known`, with the nearest of them."""
    return RequestError(f"No {what} is called {name!r}. {nearest(name, known)}")


BUILD_SECONDS = 7200
NEWER = 4
"""How many versions of Python after the least one are looked for."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages of an environment. `check`: a statement that works where it is whole. `first`: what is installed before
    the others, by itself. `python`: the least version of it."""

    name: str
    version: str
    check: str
    others: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 11)

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return the requirements in pip's form."""
        return (f"{self.name}=={self.version}", *self.others)


def python_with(packages: Packages, say: Say) -> Path:
    """Return the Python that has these packages; make it where there is none. Raises ArmError."""
    folder = cache_dir() / "peers" / f"{packages.name}-{packages.version}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not _has_them(python, packages):
            say(f"Installing {packages.name} {packages.version} in {folder}. This may take minutes, once.")
            _install(folder, python, packages)
    return python


def find_python(least: tuple[int, int]) -> Path:
    """Find a Python of at least this version: our own, one on the path, or one of pyenv. Raises ArmError."""
    if sys.version_info[:2] >= least:
        return Path(sys.executable)
    names = [f"{least[0]}.{minor}" for minor in range(least[1], least[1] + NEWER)]
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for name in names:
        on_path = shutil.which(f"python{name}")
        for python in (*([Path(on_path)] if on_path else ()), *root.glob(f"versions/{name}.*/bin/python")):
            # pyenv's stand-ins on the path fail where the version is not switched on
            if subprocess.run([python, "--version"], capture_output=True).returncode == 0:
                return python
    raise ArmError(
        f"Python {names[0]} or newer is needed, and there is none: this is {sys.version.split()[0]}"
    )


def run(command: list[str], log: Path, what: str, variables: Mapping[str, str] | None = None) -> None:
    """Run one step of an installation; its output goes to `log`. Raises ArmError."""
    with log.open("a") as written:
        try:
            done = subprocess.run(
                command,
                stdout=written,
                stderr=written,
                env={**os.environ, **(variables or {})},
                timeout=BUILD_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ArmError(f"{what} could not be built: {error}") from error
    if done.returncode:
        raise ArmError(f"{what} could not be built; {log} says why")


def _has_them(python: Path, packages: Packages) -> bool:
    """Return whether an earlier installation is whole."""
    check = packages.check.format(version=packages.version)
    return python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0


def _install(folder: Path, python: Path, packages: Packages) -> None:
    what = f"{packages.name} {packages.version}"
    log = folder.parent / f"{folder.name}.log"
    log.unlink(missing_ok=True)
    run([str(find_python(packages.python)), "-m", "venv", "--clear", str(folder)], log, what)
    pip = [str(python), "-m", "pip", "install", "--no-input"]
    for wanted in (packages.first, packages.requirements):
        if wanted:
            run([*pip, *wanted], log, what, packages.variables)
    if not _has_them(python, packages):
        raise ArmError(f"{what} was installed, but cannot be imported by {python}")
