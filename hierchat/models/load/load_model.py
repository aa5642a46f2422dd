"""Load a catalogue model ready to compute: on the CPU engine wherever it can, else through transformers.

Neither torch nor transformers' models are imported where the CPU engine computes: they take seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierchat.models.architectures.model_config import slot_size
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.device_memory import best_device, needs_of_blocks, require_blocks_fit
from hierchat.models.fetch.bring import get_blocks
from hierchat.models.formats import block_model
from hierchat.models.formats.block_model import MODEL_FILE, model_mapped_bytes, read_model
from hierchat.models.load.check import FLOAT_BYTES, by_engine, require_runnable
from hierchat.models.load.loaded_model import LoadedModel, end_ids, model_key, ready_to_chat
from hierchat.models.load.tokenizer_files import read_tokenizer
from hierchat.models.progress import (
    BrokenFileError,
    DoesNotFitError,
    Progress,
    Report,
    UnsupportedError,
    silent,
)
from hierchat.models.runnable import require_supported


def load(
    entry: ModelEntry,
    device: str | None = None,
    progress: Report = silent,
    backend: Backend | None = None,
) -> LoadedModel:
    """Fetch the model where needed and load it, by default on CUDA if there, else on the CPU. `backend`: None for the
    fastest; "float32" on the CPU is the CPU engine's own where the file's weights can be had unrounded. Raises a
    ModelError that says what to do."""
    device = device or best_device()
    if backend == "blocks" and not device.startswith("cpu"):
        raise UnsupportedError("The CPU engine runs on the CPU only; leave out the backend to use the GPU.")
    require_runnable(entry, device, backend, progress)
    note = ""
    if by_engine(entry, device, backend):
        try:
            return ready_to_chat(load_blocks(entry, progress, floats=backend == "float32"))
        except UnsupportedError as error:
            if backend == "blocks":
                raise
            note = f"{error} It runs through transformers instead, several times slower."
            progress(Progress("loading", 0, None, note))
    from hierchat.models.load.load_torch import load_torch

    return ready_to_chat(replace(load_torch(entry, device, progress, backend), note=note))


# A catalogue model in blocks: for the CPU engine, or a module of transformers over our kernels.
def load_blocks(entry: ModelEntry, progress: Report = silent, *, floats: bool = False) -> LoadedModel:
    """Fetch and unpack the model where needed, and read it. `floats`: make every weight a float32. Raises a ModelError:
    UnsupportedError where the CPU engine cannot compute it, DoesNotFitError before anything large is read."""
    folder, identity = get_blocks(entry, progress)
    config = _json(folder / "config.json")
    positions = config.get("max_position_embeddings") or 2048
    context_length = min(entry.context_length or positions, positions)
    file = folder / block_model.WEIGHTS_FILE
    if through_modules := file.is_file():
        from hierchat.models.fetch.folder import causal_config, slot_of  # transformers takes seconds

        weights = file.stat().st_size - block_model.weights_mapped_bytes(file)
        slot = slot_of(causal_config(folder, entry.name))
    else:
        require_supported(config)
        file = folder / MODEL_FILE
        weights, slot = file.stat().st_size - model_mapped_bytes(file), slot_size(config)
    if floats and entry.size:  # both, for a moment
        weights += FLOAT_BYTES * (entry.size.parameters - entry.size.looked_up)
    require_blocks_fit(entry.name, needs_of_blocks(weights, slot, modules=through_modules), context_length)
    progress(Progress("loading", 0, None, entry.name))
    tokenizer = read_tokenizer(folder)
    model: Any
    try:
        if through_modules:
            from hierchat.models.load.load_torch import read_module

            model = read_module(folder, entry.name)
        else:
            model = read_model(file)
            model = model.as_floats() if floats else model
    except MemoryError as error:
        raise DoesNotFitError(f"Memory ran out while {entry.name} was loading.") from error
    generation = folder / "generation_config.json"
    ends = _json(generation).get("eos_token_id") if generation.exists() else None
    return LoadedModel(
        name=entry.name,
        model=model,
        tokenizer=tokenizer,
        device="cpu",
        dtype="float32",
        quantisation="none",
        backend="float32" if floats else "blocks",
        context_length=context_length,
        model_key=model_key(tokenizer, identity),
        end_ids=end_ids(ends, tokenizer),
        activations=entry.activations,
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BrokenFileError(
            f"{file} cannot be read: {error}. Delete its folder; it is made anew."
        ) from error
