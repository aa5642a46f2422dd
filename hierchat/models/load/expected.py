"""Which step will compute a model, told before anything of it is fetched."""

from __future__ import annotations

import json

from hierchat.models.architectures.registry import ARCHITECTURES
from hierchat.models.architectures.through_transformers import KEEPING_STATES, SLOTTED
from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.load.check import by_engine
from hierchat.models.runnable import Step, step


def expected_step(entry: ModelEntry, device: str, backend: Backend | None = None) -> Step | None:
    """From config.json where the model is a folder, else from the kind that the catalogue names; None where neither
    tells. A file that only transformers can read is found out when it is loaded."""
    own = by_engine(entry, device, backend)
    if folder := entry.source_on(device).folder:
        try:
            return step(json.loads((folder.path / "config.json").read_text(encoding="utf-8")), own=own)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
            return None
    if entry.kind is None:
        return None
    if own and entry.kind in ARCHITECTURES:
        return "kernels"
    return "slots" if entry.kind in SLOTTED | KEEPING_STATES else "plain"
