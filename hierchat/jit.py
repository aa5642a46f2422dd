"""How kernels are compiled: for which instruction set, and where the compiled code is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba

from hierchat.config import cache_dir

INSTRUCTION_SETS = ("avx512", "avx2", "generic")
"""Fastest first; "generic" is plain LLVM, for every processor that numba knows."""

_NEEDS = {"avx512": ("avx512f", "avx512bw", "avx512vl", "fma", "f16c"), "avx2": ("avx2", "fma", "f16c")}

Function = TypeVar("Function", bound=Callable[..., Any])


class InstructionsError(Exception):
    """HIERCHAT_INSTRUCTIONS names what this processor cannot do; the text is for the user."""


def supported() -> list[str]:
    """The instruction sets that this processor has, fastest first."""
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name in INSTRUCTION_SETS if all(features.get(need) for need in _NEEDS.get(name, ()))]


def _chosen() -> str:
    wish = os.environ.get("HIERCHAT_INSTRUCTIONS")
    if wish and wish not in supported():
        raise InstructionsError(
            f"HIERCHAT_INSTRUCTIONS={wish}: this processor can do {', '.join(supported())}. Unset it."
        )
    return wish or supported()[0]


INSTRUCTIONS = _chosen()
"""What the kernels of this process are compiled for; HIERCHAT_INSTRUCTIONS overrides the choice."""


class Kernels:
    """Compiles the kernels of one package, and keeps their code on disk: `@kernel` with kernel = Kernels(__file__)."""

    def __init__(self, module: str) -> None:
        """`module`: a file of the package. numba notices a change of the file that a function stands in, not of those
        that it calls: so there is a folder for each version of the package."""
        package = Path(module).parent
        digest = hashlib.sha256(f"{numba.__version__} {INSTRUCTIONS}".encode())
        for source in sorted(package.glob("*.py")):
            digest.update(source.read_bytes())
        self.folder = cache_dir() / "kernels" / f"{package.name}-{digest.hexdigest()[:16]}"

    def has(self, function: str) -> bool:
        """Whether this version's code of a function, as "module.function", lies on disk and need not be compiled."""
        return self.folder.exists() and any(self.folder.rglob(f"{function}-*.nbc"))

    def __call__(self, function: Function) -> Function:
        """Compile at the first call, keep the code on disk, release the interpreter's lock while it runs.

        No fast-math: the order of sums as written is what makes a row's bits the same in every segment.
        """
        numba.config.CACHE_DIR = str(self.folder)
        return numba.njit(function, nogil=True, cache=True, error_model="numpy")
