"""What can go wrong in a forward, whatever computes it. Each message says what to change, and is shown as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed", "bad_alloc")
"""What the RuntimeErrors of torch, CUDA and its libraries hold where memory ran out."""


class OutOfMemory(Exception):
    """Memory ran out; what the target had committed before stands."""


class UnsupportedModel(Exception):
    """The model's layers cannot be rolled back by this engine."""


@contextmanager
def clear_memory_errors() -> Iterator[None]:
    """Raises OutOfMemory in place of what numpy, torch or CUDA raise."""
    try:
        yield
    except OutOfMemory:
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error).lower() for sign in _SIGNS):
            raise
        raise OutOfMemory(
            "Memory ran out while the model was computing. Close other programs, start a new, shorter conversation, "
            "set a shorter context_length for this model in models.yaml, or choose a smaller model."
        ) from error
