"""A catalogue model as a module of transformers whose matrices stay in the blocks of its file, for a processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierchat.models.errors import BrokenFileError
from hierchat.models.fetch.folder import causal_config
from hierchat.models.formats import block_module
from hierchat.models.formats.block_module import Matrix, ModuleWeights
from hierchat.models.formats.module_tensors import stored


@dataclass(frozen=True, slots=True)
class BlockModule:
    """`module` in eval mode; what stands for its matrices is in `matrices` by their names, and there they hold nothing
    (engine/torch/blocks.py puts them in)."""

    module: Any
    matrices: Mapping[str, Matrix]


def read_module(folder: Path, name: str) -> BlockModule:
    """What convert_module_blocks wrote; errors say `name`. Raises BrokenFileError, UnsupportedError, MemoryError."""
    weights = block_module.read(folder / block_module.FILE)
    return BlockModule(_module(folder, name, weights), weights.matrices)


def _module(folder: Path, name: str, weights: ModuleWeights) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    config = causal_config(folder, name)
    with no_init_weights(), torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    module.tie_weights()
    tensors = stored(module)
    if tensors.keys() != weights.matrices.keys() | weights.vectors.keys():
        raise BrokenFileError(
            f"{folder} does not hold the tensors of its config.json. Delete it; it is made anew."
        )
    vectors = {key: torch.tensor(weights.vectors[key]) for key in weights.vectors}
    module.load_state_dict(vectors, strict=False, assign=True)
    for tensor in stored(module).values():
        tensor._is_hf_initialized = True
    for parent, key, buffer in _buffers(module):
        if buffer.is_meta:
            parent._buffers[key] = torch.empty_like(buffer, device="cpu")
    module.initialize_weights()  # of buffers that no file holds
    return module.eval().requires_grad_(False)


def _buffers(module: Any) -> list[tuple[Any, str, Any]]:
    return [
        (part, key, buffer)
        for part in module.modules()
        for key, buffer in part._buffers.items()
        if buffer is not None
    ]
