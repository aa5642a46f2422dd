"""Which step will compute a model, told before anything of it is fetched."""

from __future__ import annotations

from contextlib import suppress

from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.errors import NONSENSE, ModelError
from hierchat.models.fetch.bring import get_gguf, is_fetched
from hierchat.models.fetch.folder import read_config
from hierchat.models.formats.gguf_head import read_head
from hierchat.models.load.check import by_engine
from hierchat.models.runnable import Step, gguf_step, step, step_of_kind


def expected_step(entry: ModelEntry, device: str, backend: Backend | None = None) -> Step | None:
    """From config.json where the model is a folder, else from the kind that the catalogue names, else from the head of
    a GGUF file that is here; None where none tells."""
    own = by_engine(entry, device, backend)
    if folder := entry.source_on(device).folder:
        try:
            return step(read_config(folder.path), own=own, device=device)
        except (ModelError, *NONSENSE):
            return None
    if entry.kind is not None:
        return step_of_kind(entry.kind, own=own, device=device)
    if entry.source_on(device).gguf and is_fetched(entry, device):
        with suppress(ModelError, *NONSENSE):
            gguf = get_gguf(entry, device=device)
            return gguf_step(read_head(gguf), own=own, device=device) if gguf else None
    return None
