"""The compiler of this package's kernels."""

from __future__ import annotations

from hierchat.jit import Kernels

kernel = Kernels(__file__)


def is_compiled() -> bool:
    """Whether the code of this version lies on disk, so that the first forward need not compile."""
    return kernel.folder.exists() and any(kernel.folder.rglob("forward.forward-*.nbc"))
