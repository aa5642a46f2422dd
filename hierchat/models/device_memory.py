"""Check whether a model fits into free memory before it is loaded."""

import ctypes
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache

import psutil

from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import ModelEntry, Size
from hierchat.models.progress import DeviceError, DoesNotFitError

_warn = cache(logging.getLogger(__name__).warning)  # the same sentence once
DEVICE = "HIERCHAT_DEVICE"
"""The environment variable that names a device."""
_SPARE = 1.15  # activations, fragments, the tokenizer
_SLOT_BYTES = 2.1  # of a key or value on the CPU engine: int16 and its share of a scale
_BLOCKS_SPARE = 150_000_000  # buffers, the tokenizer, compiled code
_CARD_SPARE = 700_000_000  # what CUDA graphs may hold (engine/cuda/graphs.py), and sums
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_NF4 = 0.52  # bytes of a weight, with its doubly quantised scales


def best_device() -> str:
    """Choose the device: HIERCHAT_DEVICE ('cpu', 'cuda'), else 'cuda' if there is one. Raises DeviceError."""
    if (asked := os.environ.get(DEVICE, "")) == "cpu" or (not asked and not cuda_driver()):
        return "cpu"
    why = why_no_cuda() if asked in ("", "cuda") else "hierchat computes on cpu and cuda"
    if not why:
        return "cuda"
    if asked:
        raise DeviceError(
            f"{DEVICE} is set to {asked}, which is not there ({why}). Unset it, or set it to cpu."
        )
    _warn("There is a driver for NVIDIA's GPUs, but the processor computes: %s.", why)
    return "cpu"


def why_no_cuda() -> str:
    """Return why torch cannot use a GPU, such as a driver that is too old; empty if it can."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    if torch.version.cuda is None:
        return "this PyTorch is made for processors"
    reasons = [text for one in said if (text := str(one.message)).startswith(_CUDA)]
    return reasons[0].removeprefix(_CUDA).split(". ")[0] if reasons else "PyTorch finds no device"


_CUDA = "CUDA initialization: "
"""How PyTorch's warnings begin that say why it cannot use a GPU."""


def cuda_driver() -> bool:
    """Tell whether the system has a driver for CUDA; torch says whether it works."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def dtype_on(dtype: str, device: str) -> str:
    """Return the dtype that 'auto' means on a device: bfloat16 on CUDA, float32 on CPU."""
    if dtype != "auto":
        return dtype
    return "float32" if device.startswith("cpu") else "bfloat16"


def free_memory(device: str) -> int:
    if not device.startswith("cuda"):
        return psutil.virtual_memory().available
    import torch

    return torch.cuda.mem_get_info(device)[0]


def total_memory(device: str) -> int:
    """Return the bytes of memory of the machine, or the GPU, whatever else uses them now."""
    if not device.startswith("cuda"):
        return psutil.virtual_memory().total
    import torch

    return torch.cuda.mem_get_info(device)[1]


def held_memory(device: str) -> int:
    """Return the bytes that this process holds on a device: at most so much comes free when its model leaves."""
    if not device.startswith("cuda"):
        return psutil.Process().memory_info().rss
    import torch

    return torch.cuda.memory_reserved(device)


def require_free(needed: int, what: str) -> None:
    """Raise DoesNotFitError unless so many bytes of main memory are free."""
    if needed > (free := free_memory("cpu")):
        raise DoesNotFitError(
            f"{what} needs about {gigabytes(needed)} of memory, and {gigabytes(free)} are free."
        )


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Memory of a model in bytes: its weights, those of each position, all times `factor`, and `spare`."""

    weights: float
    position: float
    spare: int = 0
    factor: float = 1.0

    def total(self, positions: int) -> int:
        return int(self.factor * (self.weights + positions * self.position) + self.spare)

    def positions_in(self, free: int) -> int:
        """Count the positions for which so many bytes suffice, in steps of 256; 0 where fewer than 512 do."""
        left = (free - self.spare) / self.factor - self.weights
        positions = int(left / self.position) // 256 * 256 if self.position else 0
        return positions if positions >= 512 else 0


def needs_of(entry: ModelEntry, size: Size, device: str) -> MemoryNeeds:
    """Return the memory that a model needs as its entry says, through transformers, and 15 % to spare."""
    width = _WIDTHS[dtype_on(entry.dtype, device)]
    inner = (size.parameters - size.embeddings) * (_NF4 if entry.quantisation == "nf4" else width)
    return MemoryNeeds(size.embeddings * width + inner, size.slot * width, factor=_SPARE)


def needs_of_blocks(weights: int, slot: int) -> MemoryNeeds:
    """Return the memory that a model of `weights` bytes in blocks needs, with `slot` numbers per position."""
    return MemoryNeeds(weights, slot * _SLOT_BYTES, _BLOCKS_SPARE)


def needs_on_card(weights: int, slot: int) -> MemoryNeeds:
    """Return the memory of a GPU that a model of `weights` bytes in blocks needs, with `slot` numbers per position."""
    return MemoryNeeds(weights, slot * _WIDTHS["bfloat16"], _CARD_SPARE)


def require_fit(
    name: str, needs: MemoryNeeds, context_length: int, held: int = 0, device: str = "cpu"
) -> None:
    """Raise DoesNotFitError if a model does not fit now. `held`: bytes that will be free, too."""
    needed, free = needs.total(context_length), free_memory(device) + held
    if needed <= free:
        return
    positions = needs.positions_in(free)
    hint = f"`context_length: {positions}` would fit." if positions else "Choose a smaller model."
    where = "" if device == "cpu" else f" on {device}"
    raise DoesNotFitError(
        f"{name} needs about {gigabytes(needed)} of memory{where} ({context_length} positions), and "
        f"{gigabytes(free)} are free. {hint}{or_the_processor(device)}"
    )


def or_the_processor(device: str) -> str:
    """Return a last sentence for an error about another device: it offers the processor."""
    return "" if device.startswith("cpu") else f" With {DEVICE}=cpu the processor computes it."
