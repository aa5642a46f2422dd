"""4-bit products of bitsandbytes as one kernel over the quantised blocks, for as many rows as our forwards have.

bitsandbytes 0.50 has such a kernel for up to 1,536 rows, and by rules of thumb for each GPU unpacks the whole matrix
instead: one of 4096 x 4096 from 8 rows on with an H100, one of 1536 x 1536 from 33. A row's bits depend on which of
the two was taken, so on the number of rows, and such a forward writes the unpacked matrix to memory first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from hierchat.engine.cuda.static_segment import DEPTH

_CHOICE = "_gemm_4bit_use_custom_fn"
"""Of bitsandbytes.backends.cuda.ops: (device, dtype, rows, out, in) -> whether the kernel takes it."""
Choice = Callable[[int, torch.dtype, int, int, int], bool]


def fuse() -> bool:
    """Have the kernel take all products of our forwards, where it has one for tensor cores; whether it can be told to.
    Other versions of bitsandbytes choose as they did."""
    try:
        from bitsandbytes.backends.cuda import ops
    except Exception:  # no such version, or a library that does not load
        return False
    choice: Any = getattr(ops, _CHOICE, None)
    if choice is None or torch.version.hip is not None:
        return False
    if not hasattr(choice, "fused"):
        setattr(ops, _CHOICE, fused_choice(choice))
    return True


def fused_choice(
    choice: Choice,
    capability: Callable[[int], tuple[int, int]] = torch.cuda.get_device_capability,
) -> Choice:
    """`choice`, and the kernel in any case for 2 to DEPTH rows on what has tensor cores for this dtype."""

    @functools.cache
    def fused(device: int, dtype: torch.dtype, rows: int, out: int, inner: int) -> bool:
        if rows > DEPTH or dtype == torch.float32:
            return choice(device, dtype, rows, out, inner)
        least = (7, 5) if dtype == torch.float16 else (8, 0)
        return capability(device) >= least or choice(device, dtype, rows, out, inner)

    fused.fused = True  # type: ignore[attr-defined]
    return fused
