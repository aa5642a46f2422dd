"""A catalogue model for the CPU engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hierchat.models.block_model import FILE, read, require_supported, slot_size
from hierchat.models.cache import gigabytes
from hierchat.models.catalogue import ModelEntry
from hierchat.models.errors import BrokenFileError, DoesNotFitError
from hierchat.models.fetch import get_blocks
from hierchat.models.loaded import LoadedModel, model_key
from hierchat.models.memory import free_memory
from hierchat.models.progress import Progress, Report, silent

_SLOT_BYTES = 2.1
"""Bytes per number of a key or value: int16 and its share of a scale."""
_SPARE = 150_000_000
"""Bytes for buffers, the tokenizer and compiled code."""


def load_blocks(entry: ModelEntry, progress: Report = silent) -> LoadedModel:
    """Fetches and unpacks the model where needed, and reads it. Raises a ModelError: UnsupportedError where the CPU
    engine cannot compute it, DoesNotFitError before anything large is read."""
    folder, identity = get_blocks(entry, progress)
    config = _json(folder / "config.json")
    positions = config.get("max_position_embeddings") or 2048
    context_length = min(entry.context_length or positions, positions)
    require_supported(config, context_length)
    _require_fit(entry, (folder / FILE).stat().st_size, slot_size(config), context_length)
    progress(Progress("loading", 0, None, entry.name))
    tokenizer = _tokenizer(folder)
    try:
        model = read(folder / FILE)
    except MemoryError as error:
        raise DoesNotFitError(f"Memory ran out while {entry.name} was loading.") from error
    return LoadedModel(
        name=entry.name,
        model=model,
        tokenizer=tokenizer,
        device="cpu",
        dtype="float32",
        quantisation="none",
        backend="blocks",
        context_length=context_length,
        model_key=model_key(tokenizer, identity),
        end_ids=_end_ids(folder, tokenizer),
    )


def _require_fit(entry: ModelEntry, weights: int, slot: int, context_length: int) -> None:
    needed = int(weights + context_length * slot * _SLOT_BYTES + _SPARE)
    free = free_memory("cpu")
    if needed <= free:
        return
    positions = int((free - weights - _SPARE) / (slot * _SLOT_BYTES)) // 256 * 256
    hint = f"`context_length: {positions}` would fit." if positions >= 512 else "Choose a smaller model."
    raise DoesNotFitError(
        f"{entry.name} needs about {gigabytes(needed)} of memory ({context_length} positions), and "
        f"{gigabytes(free)} are free. {hint}"
    )


def _tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast  # AutoTokenizer would bring torch with it

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BrokenFileError(
            f"The tokenizer in {folder} cannot be read: {error}. Delete the folder."
        ) from error


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
