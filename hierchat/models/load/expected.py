"""Which step will compute a model, told before anything of it is fetched."""

from __future__ import annotations

import json

from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.load.check import by_engine
from hierchat.models.runnable import Step, step, step_of_kind


def expected_step(entry: ModelEntry, device: str, backend: Backend | None = None) -> Step | None:
    """From config.json where the model is a folder, else from the kind that the catalogue names; None where neither
    tells. A file that only transformers can read is found out when it is loaded."""
    own = by_engine(entry, device, backend)
    if folder := entry.source_on(device).folder:
        try:
            config = json.loads((folder.path / "config.json").read_text(encoding="utf-8"))
            return step(config, own=own, device=device)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            return None
    return None if entry.kind is None else step_of_kind(entry.kind, own=own, device=device)
