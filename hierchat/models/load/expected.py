"""Which step will compute a model, told before anything of it is fetched."""

from __future__ import annotations

import json
from contextlib import suppress

from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.errors import ModelError
from hierchat.models.fetch.bring import get_gguf, is_fetched
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.check import by_engine
from hierchat.models.runnable import Step, gguf_step, step, step_of_kind


def expected_step(entry: ModelEntry, device: str, backend: Backend | None = None) -> Step | None:
    """From config.json where the model is a folder, else from the kind that the catalogue names, else from the head of
    a GGUF file that is here; None where none tells."""
    own = by_engine(entry, device, backend)
    if folder := entry.source_on(device).folder:
        try:
            config = json.loads((folder.path / "config.json").read_text(encoding="utf-8"))
            return step(config, own=own, device=device)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            return None
    if entry.kind is not None:
        return step_of_kind(entry.kind, own=own, device=device)
    if entry.source_on(device).gguf and is_fetched(entry, device):
        with suppress(ModelError, KeyError, TypeError, ZeroDivisionError):
            gguf = get_gguf(entry, device=device)
            return gguf_step(read_head(gguf), own=own, device=device) if gguf else None
    return None
