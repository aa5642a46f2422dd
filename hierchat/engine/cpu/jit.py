"""The compiler of this package's kernels."""

from __future__ import annotations

from hierchat.jit import Kernels

kernel = Kernels(__file__)


def is_compiled() -> bool:
    """Whether the code of this version lies on disk, so that the first forward need not compile."""
    return kernel.has("forward.forward")
