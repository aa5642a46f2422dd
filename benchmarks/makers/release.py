"""Check what is to be released: python -m benchmarks.makers.release [STEP ...], all steps by default.

`lock` as the first word writes requirements.lock anew, with the latest versions that pyproject.toml allows (needs uv).
The lock is of PyPI's files, for all systems and Python 3.11 or later. There torch is the build with CUDA on Linux; one
of another index, such as `+cpu`, has other hashes: install that first, and pip leaves it as it is."""

import filecmp
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hierchat import __version__

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
_HEADER = "# All packages of an install, with the hashes of PyPI's files (docs/security.md)\n"


class NotReady(Exception):
    """A step found something that keeps the release back."""


def _run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise NotReady(f"{' '.join(map(str, command))} ended with {done.returncode}.\n{done.stdout[-2000:]}")
    return done.stdout


def clean_tree() -> None:
    """Raise NotReady if a file is changed or unknown to git."""
    if left := _run("git", "status", "--porcelain"):
        raise NotReady(f"The tree has changes:\n{left}")


def changelog(text: str | None = None) -> None:
    """Raise NotReady unless the newest entry of CHANGELOG.md is of this version and dated."""
    newest = re.search(r"^## (\S+) \((.+)\)$", text or (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or newest[1] != __version__ or newest[2] == "unreleased":
        raise NotReady(f"CHANGELOG.md does not begin with version {__version__} and its date.")


def write_lock(file: Path = LOCK) -> None:
    """Resolve pyproject.toml with uv, for all systems. Versions that `file` has already stay if they fit."""
    how = ("--universal", "--generate-hashes", "--python-version", "3.11", "--no-header", "--no-annotate")
    pins = file.read_text(encoding="utf-8") if file.exists() else ""
    file.write_text(pins.removeprefix(_HEADER), encoding="utf-8")
    _run("uv", "pip", "compile", "pyproject.toml", *how, "--quiet", "--output-file", file)
    file.write_text(_HEADER + file.read_text(encoding="utf-8"), encoding="utf-8")


def lock_is_up_to_date() -> None:
    """Raise NotReady if pyproject.toml asks for what the lock does not have."""
    with TemporaryDirectory() as folder:
        again = Path(shutil.copy(LOCK, folder))
        write_lock(again)
        if not filecmp.cmp(again, LOCK, shallow=False):
            raise NotReady("requirements.lock is not up to date: python -m benchmarks.makers.release lock")


def continuous_integration() -> None:
    """Run what CI runs."""
    _run("bash", ".ci/run")


def wheel() -> None:
    """Build the wheel into dist/ twice; raise NotReady if the two differ, or have no bill of materials."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    with TemporaryDirectory() as folder:
        for place in (folder, str(ROOT / "dist")):
            _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", place, ".")
        (first,), (second,) = Path(folder).glob("*.whl"), (ROOT / "dist").glob("*.whl")
        if not filecmp.cmp(first, second, shallow=False):
            raise NotReady("The wheel built twice is not the same to the byte.")
    with zipfile.ZipFile(second) as archive:
        if not any(".dist-info/sboms/" in name for name in archive.namelist()):
            raise NotReady("The wheel has no bill of materials.")


def prove() -> None:
    """Install the lock and the wheel into a new environment, and run `hierchat prove` there."""
    (built,) = (ROOT / "dist").glob("*.whl")
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder, "Scripts" if os.name == "nt" else "bin")
        pip = (programs / "python", "-m", "pip", "install", "-q")
        _run(*pip, "--require-hashes", "-r", LOCK)
        _run(*pip, "--no-deps", built)
        _run(programs / "hierchat", "prove", cwd=Path(folder), HIERCHAT_DATA=folder, PYTHONPATH="")


STEPS: dict[str, Callable[[], None]] = {
    "clean": clean_tree,
    "changelog": changelog,
    "pins": lock_is_up_to_date,
    "ci": continuous_integration,
    "wheel": wheel,
    "prove": prove,
}


def main(words: list[str]) -> int:
    """Run the steps, and return 1 at the first that fails."""
    if words == ["lock"]:
        write_lock()
        return 0
    for name in words or STEPS:
        try:
            STEPS[name]()
        except NotReady as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        print(f"{name}: ready", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
