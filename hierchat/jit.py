"""Compile kernels: for which instruction set, and where the compiled code is kept."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba
from filelock import FileLock
from numba import types

from hierchat.config import cache_dir

_AVX512 = ("avx512f", "avx512bw", "avx512vl", "fma", "f16c")
_AVX2 = ("avx2", "fma", "f16c")
_NEEDS = {
    "avx512vnni": (*_AVX512, "avx512vnni"),
    "avx512": _AVX512,
    "avxvnni": (*_AVX2, "avxvnni"),
    "avx2": _AVX2,
    "i8mm": ("neon", "dotprod", "i8mm"),
    "dotprod": ("neon", "dotprod"),
    "neon": ("neon",),
    "generic": (),
}
INSTRUCTION_SETS = tuple(_NEEDS)
"""Fastest first; "generic" is plain LLVM, for every processor that numba knows."""
LANES_OF = {name: 16 if name.startswith("avx512") else 8 for name in INSTRUCTION_SETS}
"""Rows of weights that are computed side by side, and lie interleaved in memory."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def supported() -> list[str]:
    """Return the instruction sets that this processor has, fastest first."""
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name in INSTRUCTION_SETS if all(features.get(need) for need in _NEEDS[name])]


INSTRUCTIONS = os.environ.get("HIERCHAT_INSTRUCTIONS") or supported()[0]
"""What the kernels of this process are compiled for; HIERCHAT_INSTRUCTIONS overrides the choice."""
if INSTRUCTIONS not in supported():
    raise ValueError(
        f"HIERCHAT_INSTRUCTIONS={INSTRUCTIONS}: this processor can do {', '.join(supported())}. Unset it."
    )
LANES = LANES_OF[INSTRUCTIONS]


class Kernels:
    """Compile the kernels of one package, and keep their code on disk: `@kernel` with kernel = Kernels(__file__)."""

    def __init__(self, module: str) -> None:
        """Take `module`, a file of the package; the cache has a folder for each version of all of them."""
        package = Path(module).parent
        digest = hashlib.sha256(f"{numba.__version__} {INSTRUCTIONS}".encode())
        for source in sorted(package.glob("*.py")):
            digest.update(source.read_bytes())
        self.folder = cache_dir() / "kernels" / f"{package.name}-{digest.hexdigest()[:16]}"
        self.functions = 0
        _ALL.append(self)

    def has(self, function: str) -> bool:
        """Tell whether this version's code of a function, as "module.function", is on disk and need not be compiled."""
        return self.folder.exists() and any(self.folder.rglob(f"{function}-*.nbc"))

    def __call__(self, function: _Function) -> _Function:
        """Compile at the first call, cached, without the interpreter's lock. No fast-math: sums keep their order."""
        numba.config.CACHE_DIR = str(self.folder)
        self.functions += 1
        found = numba.njit(function, nogil=True, cache=True, error_model="numpy")
        _for_all_values(found)
        # Let one process at a time write code: numba's own way would let two take the same name for different code
        cache = found._cache
        save = cache.save_overload

        def save_alone(signature: Any, compiled: Any) -> None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / "lock"):
                save(signature, compiled)

        cache.save_overload = save_alone
        return found


def compiled() -> tuple[int, int]:
    """Count the functions whose code lies on disk, and how many were asked for so far."""
    done = sum(len(list(kernels.folder.rglob("*.nbi"))) for kernels in _ALL)
    functions = sum(kernels.functions for kernels in _ALL)
    return min(done, functions), functions


_ALL: list[Kernels] = []


def _for_all_values(function: Any) -> None:
    """Compile a kernel for all numbers, which numba would compile again for each number as written."""
    template = function.get_call_template

    def general(arguments: Any, keywords: Any) -> Any:
        plain = {name: types.unliteral(kind) for name, kind in keywords.items()}
        return template(tuple(types.unliteral(kind) for kind in arguments), plain)

    function.get_call_template = general
