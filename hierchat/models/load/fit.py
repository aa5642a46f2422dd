"""Whether a model fits this machine, as a word and a reason. Nothing is fetched to find out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.errors import ModelError
from hierchat.models.fetch.bring import is_fetched
from hierchat.models.fetch.weights import block_bytes
from hierchat.models.load.check import by_engine, require_runnable, through_modules
from hierchat.models.memory import blocks_needed, bytes_needed, dtype_on, free_memory, total_memory

Verdict = Literal["yes", "tight", "full", "no", "unknown"]
"""full: the machine has the memory, but other programs hold it now."""
EASY = 0.75
"""Of the free memory, what a model may take without being a tight fit."""
ROOMY = 0.5
"""Share of the machine's memory that a model may take that shall fit every day, beside other programs."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`why`: a sentence for the page. `needed`: bytes of memory, None where nothing tells."""

    verdict: Verdict
    why: str
    needed: int | None = None


def fit(
    entry: ModelEntry,
    device: str,
    backend: Backend | None = None,
    held: int = 0,
    weights: int | None = None,
) -> Fit:
    """As far as memory goes. `held`: bytes that will be free when it is loaded, besides those that are free now;
    `weights`: bytes of a GGUF file's tensors that is not here, where its head tells them."""
    if entry.engine:
        return Fit("yes", f"Runs at {entry.engine.openai.url} and takes no memory here.", 0)
    needed = memory_needed(entry, device, backend, weights)
    if needed is None:
        return Fit("unknown", "How much memory it needs is known once it is here.")
    free, total = free_memory(device) + held, total_memory(device)
    if needed > total:
        said = f"Needs {gigabytes(needed)} of memory; this machine has {gigabytes(total)}."
        return Fit("no", f"{said} Choose a smaller model.", needed)
    said = f"Needs {gigabytes(needed)} of {gigabytes(min(free, total))} available."
    if needed > free:
        return Fit("full", f"{said} Close other programs to load it.", needed)
    if needed > EASY * free:
        return Fit("tight", f"{said} Other programs may become slow.", needed)
    return Fit("yes", said, needed)


def fits_every_day(found: Fit, device: str) -> bool:
    """Whether memory is no question, whatever other programs hold at the moment."""
    return found.verdict != "no" and found.needed is not None and found.needed <= ROOMY * total_memory(device)


def memory_needed(
    entry: ModelEntry, device: str, backend: Backend | None = None, weights: int | None = None
) -> int | None:
    """Bytes of weights and of the whole context; None where neither files nor catalogue tell."""
    size, context = entry.size, entry.context_length or 4096
    if by_engine(entry, device, backend):
        weights = block_bytes(entry, device, weights)
        if weights and size:
            weights = int(weights * size.held)
        slot = size.slot if size else 0
        return blocks_needed(weights, slot, context, modules=through_modules(entry)) if weights else None
    return bytes_needed(size, dtype_on(entry.dtype, device), entry.quantisation, context) if size else None


def refusal(entry: ModelEntry, device: str, backend: Backend | None = None) -> str:
    """Why a model that is here can never run, from its files; empty where nothing speaks against it."""
    if entry.engine or not is_fetched(entry, device):
        return ""
    try:
        require_runnable(entry.model_copy(update={"size": None}), device, backend)
    except ModelError as error:
        return str(error)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"Its files cannot be read ({type(error).__name__})."
    return ""
