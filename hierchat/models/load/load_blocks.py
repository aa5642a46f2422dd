"""A catalogue model in blocks: for the CPU engine, or a module of transformers over our kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hierchat.models.architectures.layers import slot_size
from hierchat.models.catalogue import ModelEntry
from hierchat.models.errors import BrokenFileError, DoesNotFitError
from hierchat.models.fetch.bring import get_blocks
from hierchat.models.formats import block_module
from hierchat.models.formats.block_model import FILE, mapped_bytes, read
from hierchat.models.load.check import FLOAT_BYTES
from hierchat.models.load.load_tokenizer import read_tokenizer
from hierchat.models.load.loaded import LoadedModel, model_key
from hierchat.models.memory import require_blocks_fit
from hierchat.models.progress import Progress, Report, silent
from hierchat.models.runnable import require_supported


def load_blocks(entry: ModelEntry, progress: Report = silent, *, floats: bool = False) -> LoadedModel:
    """Fetches and unpacks the model where needed, and reads it; `floats`: makes every weight a float32. Raises a
    ModelError: UnsupportedError where the CPU engine cannot compute it, DoesNotFitError before anything large is read.
    """
    folder, identity = get_blocks(entry, progress)
    config = _json(folder / "config.json")
    positions = config.get("max_position_embeddings") or 2048
    context_length = min(entry.context_length or positions, positions)
    if through_modules := (folder / block_module.FILE).is_file():
        from hierchat.models.fetch.folder import causal_config, slot_of  # transformers takes seconds

        weights = _near(folder / block_module.FILE, block_module.mapped_bytes)
        slot = slot_of(causal_config(folder, entry.name))
    else:
        require_supported(config)
        weights, slot = _near(folder / FILE, mapped_bytes), slot_size(config)
    if floats and entry.size:  # both, for a moment
        weights += FLOAT_BYTES * (entry.size.parameters - entry.size.looked_up)
    require_blocks_fit(entry.name, weights, slot, context_length, modules=through_modules)
    progress(Progress("loading", 0, None, entry.name))
    tokenizer = read_tokenizer(folder)
    model: Any
    try:
        if through_modules:
            from hierchat.models.load.load_module import read_module

            model = read_module(folder, entry.name)
        else:
            model = read(folder / FILE)
            if floats:
                model = model.as_floats()
    except MemoryError as error:
        raise DoesNotFitError(f"Memory ran out while {entry.name} was loading.") from error
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
        end_ids=_end_ids(folder, tokenizer),
    )


def _near(file: Path, mapped: Callable[[Path], int]) -> int:
    """Bytes that are in memory."""
    return file.stat().st_size - mapped(file)


def _end_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    file = folder / "generation_config.json"
    ends = _json(file).get("eos_token_id") if file.exists() else None
    several = ends if isinstance(ends, list) else [ends]
    return frozenset(end for end in [*several, tokenizer.eos_token_id] if end is not None)


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BrokenFileError(
            f"{file} cannot be read: {error}. Delete its folder; it is made anew."
        ) from error
