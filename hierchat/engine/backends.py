"""From a loaded model to the target that computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierchat.engine.target import Target

if TYPE_CHECKING:
    from hierchat.models.loaded import LoadedModel


def make_target(loaded: LoadedModel) -> Target:
    """The target of the backend that the model was loaded for."""
    if loaded.backend == "blocks":
        from hierchat.engine.cpu.target import BlockTarget

        return BlockTarget(loaded.model, context_length=loaded.context_length, key=loaded.model_key)
    from hierchat.engine.torch_target import TorchTarget

    return TorchTarget(
        loaded.model,
        context_length=loaded.context_length,
        packed=None if loaded.backend == "float16" else False,
        key=loaded.model_key,
    )
