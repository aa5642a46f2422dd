"""Find the CUDA kernels by name. Triton, which compiles them, is imported with the first."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

_MODULES = {
    "attend": "triton_attention",
    "convolve": "triton_states",
    "grouped": "triton_blocks",
    "multiply": "triton_blocks",
    "walk": "triton_states",
}
PLAIN: dict[str, Callable[..., Any]] = {}
"""Functions that compute the same on the processor, for tests without a GPU (benchmarks/plain_kernels.py)."""


def kernel(name: str, device: torch.device) -> Callable[..., Any]:
    """Return the kernel of this name for tensors on a device."""
    if device.type != "cuda" and name in PLAIN:
        return PLAIN[name]
    found: Callable[..., Any] = getattr(import_module(f"{__package__}.{_MODULES[name]}"), name)
    return found
