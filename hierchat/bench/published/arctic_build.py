"""The suffix cache of arctic-inference, compiled by itself: the package as a whole asks for vLLM and a GPU."""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
from pathlib import Path

import requests
from filelock import FileLock

from hierchat.bench.errors import ArmError
from hierchat.bench.peers.environment import Packages, python_with, run
from hierchat.config import cache_dir

VERSION = "0.3.0"
SOURCE = (
    "https://files.pythonhosted.org/packages/63/c1/573fa2f00097cd9cc1167b31fd900b2482f58f3491867cebdd5516626533/"
    f"arctic_inference-{VERSION}.tar.gz"
)
SHA256 = "7f22e3e1b1071c6061c0d6951be17c0fb50b08d06d6e543144c8f52faba60a36"
NANOBIND = Packages(
    "nanobind",
    "2.9.2",
    "import cmake, nanobind, ninja; assert nanobind.__version__ == {version!r}",
    others=("cmake>=3.18,<4", "ninja"),
)
SECONDS = 60
_WANTED = ("arctic_inference/__init__.py", "arctic_inference/suffix_decoding/", "csrc/suffix_decoding/")


def arctic_folder() -> Path:
    """A folder to import arctic_inference.suffix_decoding from. Raises ArmError that says why it cannot be had."""
    folder = cache_dir() / "peers" / f"arctic-suffix-{VERSION}-{sys.implementation.cache_tag}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    _unpack(part)
    python = python_with(NANOBIND, lambda text: print(text, file=sys.stderr))
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    what = f"arctic-inference's suffix cache {VERSION}"
    build = part / "build"
    cmake = [str(python), "-m", "cmake"]
    source = str(part / "csrc" / "suffix_decoding")
    module = part / "arctic_inference" / "suffix_decoding"
    chosen = [f"-DPython_EXECUTABLE={python}", "-DCMAKE_BUILD_TYPE=Release"]
    chosen.append(f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={module}")
    run([*cmake, "-S", source, "-B", str(build), *chosen], log, what)
    run([*cmake, "--build", str(build), "--config", "Release"], log, what)
    shutil.rmtree(build)
    part.rename(folder)


def _unpack(folder: Path) -> None:
    """The parts that are needed of the source distribution."""
    try:
        answer = requests.get(SOURCE, timeout=SECONDS)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise ArmError(f"arctic-inference {VERSION} could not be fetched: {error}") from error
    if hashlib.sha256(answer.content).hexdigest() != SHA256:
        raise ArmError(f"{SOURCE} is not the file that it was.")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        root = f"arctic_inference-{VERSION}/"
        for member in archive.getmembers():
            member.name = member.name.removeprefix(root)
            if member.name.startswith(_WANTED):
                archive.extract(member, folder, filter="data")
