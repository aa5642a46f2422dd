"""A catalogue model, ready to compute: on the CPU engine wherever it can, else through transformers.

Neither torch nor transformers' models are imported where the CPU engine computes: they take seconds.
"""

from __future__ import annotations

from dataclasses import replace

from hierchat.models.catalogue import Backend, ModelEntry
from hierchat.models.errors import UnsupportedError
from hierchat.models.load.chat import ready_to_chat
from hierchat.models.load.check import by_engine, require_runnable
from hierchat.models.load.loaded import LoadedModel
from hierchat.models.memory import best_device
from hierchat.models.progress import Progress, Report, silent


def load(
    entry: ModelEntry,
    device: str | None = None,
    progress: Report = silent,
    backend: Backend | None = None,
) -> LoadedModel:
    """Fetches the model where needed and loads it, by default on CUDA if there, else on the CPU.

    `backend`: None for the fastest that device and model allow. "float32" on the CPU is the CPU engine's own where the
    file's weights can be had unrounded. Raises a ModelError that says what to do.
    """
    device = device or best_device()
    if backend == "blocks" and not device.startswith("cpu"):
        raise UnsupportedError("The CPU engine runs on the CPU only; leave out the backend to use the GPU.")
    require_runnable(entry, device, backend, progress)
    note = ""
    if by_engine(entry, device, backend):
        from hierchat.models.load.load_blocks import load_blocks

        try:
            return ready_to_chat(load_blocks(entry, progress, floats=backend == "float32"))
        except UnsupportedError as error:
            if backend == "blocks":
                raise
            note = f"{error} It runs through transformers instead, several times slower."
            progress(Progress("loading", 0, None, note))
    from hierchat.models.load.load_torch import load_torch

    return ready_to_chat(replace(load_torch(entry, device, progress, backend), note=note))
