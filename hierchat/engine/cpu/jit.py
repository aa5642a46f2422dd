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


def supported() -> list[str]:
    """The instruction sets that this processor has, fastest first."""
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name in INSTRUCTION_SETS if all(features.get(need) for need in _NEEDS.get(name, ()))]


def _chosen() -> str:
    wish = os.environ.get("HIERCHAT_INSTRUCTIONS")
    if wish and wish not in supported():
        raise RuntimeError(
            f"HIERCHAT_INSTRUCTIONS={wish}: this processor can do {', '.join(supported())}. Unset it."
        )
    return wish or supported()[0]


INSTRUCTIONS = _chosen()
"""What the kernels of this process are compiled for; HIERCHAT_INSTRUCTIONS overrides the choice."""


def _folder() -> Path:
    """numba notices a change of the file that a function stands in, not of those it calls: so a folder per version."""
    digest = hashlib.sha256(f"{numba.__version__} {INSTRUCTIONS}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return cache_dir() / "kernels" / digest.hexdigest()[:16]


FOLDER = _folder()

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile at the first call, keep the code on disk, release the interpreter's lock while it runs.

    No fast-math: the order of sums as written is what makes a row's bits the same in every block.
    """
    numba.config.CACHE_DIR = str(FOLDER)
    return numba.njit(function, nogil=True, cache=True, error_model="numpy")


def is_compiled() -> bool:
    """Whether the code of this version lies on disk, so that the first forward need not compile."""
    return FOLDER.exists() and any(FOLDER.rglob("forward.forward-*.nbc"))
