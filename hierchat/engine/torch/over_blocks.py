"""Puts the blocks of a file into transformers' module."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from hierchat.engine.cpu.multiply import Multiplier
from hierchat.engine.torch.blocks import BlockEmbedding, BlockLinear
from hierchat.engine.torch.experts import by_expert
from hierchat.models.formats.block_module import Matrix
from hierchat.models.formats.module_tensors import FORMS, has_experts, stored
from hierchat.models.load.load_module import BlockModule


def over_blocks(loaded: BlockModule, threads: int | None = None) -> Any:
    """transformers' module, its matrices multiplied by our kernels. Made once, it stays so."""
    module, multiplier = loaded.module, Multiplier(threads)
    tensors = stored(module)
    names = {id(tensor): name for name, tensor in tensors.items()}

    def matrix_of(weight: Any) -> Matrix | None:
        return loaded.matrices.get(names.get(id(weight), ""))

    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            matrix = matrix_of(getattr(child, "weight", None))
            if matrix and isinstance(child, nn.Embedding):
                setattr(parent, name, BlockEmbedding(child, matrix))
            elif matrix:
                setattr(parent, name, BlockLinear(matrix, multiplier, child.bias))
        if has_experts(parent):
            for name in FORMS:
                if matrix := matrix_of(getattr(parent, name, None)):
                    delattr(parent, name)
                    setattr(parent, name, BlockLinear(matrix, multiplier))
                    parent.forward = partial(by_expert, parent)
    return module
