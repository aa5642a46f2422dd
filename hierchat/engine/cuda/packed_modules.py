"""Put matrices in the blocks of their file into a transformers module on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hierchat.engine.cuda.packed import Packed, multiply_plainly, pack
from hierchat.engine.cuda.packed_experts import PackedExperts
from hierchat.models.formats.gguf_module import stored
from hierchat.models.load.load_model import FileModule


class PackedMatrix(nn.Module):
    """Linear layer y = x W^T + b over blocks on a device; x [..., in], y [..., out], of one dtype."""

    def __init__(self, matrix: Packed, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.matrix, self.bias = matrix, bias
        self.in_features, self.out_features = matrix.inputs, matrix.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if x.device.type == "cuda":
            from hierchat.engine.cuda.triton_blocks import multiply

            return multiply(rows, self.matrix, self.bias).view(*x.shape[:-1], -1)
        return multiply_plainly(rows, self.matrix, self.bias).view(*x.shape[:-1], -1)


class PackedWeight(nn.Parameter):
    """Weight of a router of transformers in blocks: F.linear(x, weight), which a router calls, is our product."""

    matrix: PackedMatrix

    def __new__(cls, matrix: Packed) -> PackedWeight:
        weight = super().__new__(cls, torch.empty(0), requires_grad=False)
        weight.matrix = PackedMatrix(matrix)
        return weight

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            x, weight = args
            return weight.matrix(x)
        return super().__torch_function__(function, types, args, kwargs or {})


class PackedLookup(nn.Module):
    """Embedding whose rows are blocks on a device; only the rows of the tokens at hand are unpacked."""

    def __init__(self, matrix: Packed, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix, self.dtype = matrix, dtype

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.matrix.floats(tokens.reshape(-1)).to(self.dtype).view(*tokens.shape, -1)


def is_packed(module: Any) -> bool:
    """Return whether the module's matrices are blocks on a device."""
    return any(isinstance(part, PackedMatrix) for part in module.modules())


def in_packed_blocks(loaded: FileModule) -> Any:
    """Return the module with its matrices as blocks on the device. Made once, it stays so."""
    module, device = loaded.module, torch.device(loaded.device)
    names = {id(tensor): name for name, tensor in stored(module).items()}
    made: dict[str, Packed] = {}
    for parent in list(module.modules()):
        for called, child in list(parent.named_children()):
            stacks = [names.get(id(getattr(child, one, None)), "") for one in ("gate_up_proj", "down_proj")]
            if loaded.matrices.keys() >= set(stacks):
                pieces = [piece for stack in stacks for piece in loaded.matrices[stack].pieces]
                packed = [pack(kind, rows, device, module.dtype, order) for kind, rows, order in pieces]
                setattr(parent, called, PackedExperts(packed, child.num_experts, child.act_fn))
                continue
            name = names.get(id(getattr(child, "weight", None)), "")
            if name not in loaded.matrices:
                continue
            if name not in made:  # an embedding may be the output as well
                ((kind, rows, order),) = loaded.matrices[name].pieces
                made[name] = pack(kind, rows, device, module.dtype, order)
            if isinstance(child, nn.Embedding):
                setattr(parent, called, PackedLookup(made[name], module.dtype))
            elif isinstance(child, nn.Linear):
                setattr(parent, called, PackedMatrix(made[name], child.bias))
            else:
                child.weight = PackedWeight(made[name])
    return module.to(device)
