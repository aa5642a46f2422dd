"""Put matrices in the blocks of their file into a transformers module on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hierchat.engine.cuda.packed import Packed, multiply_plainly, pack
from hierchat.engine.cuda.packed_experts import Activation, PackedExperts
from hierchat.models.formats.gguf_module import stored
from hierchat.models.load.load_model import FileModule


class PackedMatrix(nn.Module):
    """Linear layer y = x W^T + b over blocks on a device; x [..., in], y [..., out], of one dtype."""

    def __init__(self, matrix: Packed, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.matrix, self.bias = matrix, bias
        self.in_features, self.out_features = matrix.inputs, matrix.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = multiply_plainly
        if x.device.type == "cuda":
            from hierchat.engine.cuda.triton_blocks import multiply as product
        return product(x, self.matrix, self.bias).view(*x.shape[:-1], -1)


class PackedWeight(nn.Parameter):
    """Weight of a router of transformers in blocks: F.linear, which a router calls, is our product."""

    matrix: Packed

    def __new__(cls, matrix: Packed) -> PackedWeight:
        weight = super().__new__(cls, torch.empty(0), requires_grad=False)
        weight.matrix = matrix
        return weight

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            x, weight, *bias = args
            return PackedMatrix(weight.matrix, *bias)(x)
        return super().__torch_function__(function, types, args, kwargs or {})


class JoinedMatrices(nn.ModuleList):
    """Linear layers over the same inputs, whose outputs are concatenated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self], dim=-1)


class Reordered(nn.Module):
    """Numbers of each row in another order, for a matrix whose columns are in the order of its file."""

    def __init__(self, order: NDArray[np.int64]) -> None:
        super().__init__()
        self.order = nn.Buffer(torch.from_numpy(order), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(-1, self.order)


class PackedLookup(nn.Module):
    """Embedding, times a `scale`, whose rows are blocks on a device; only the rows of the tokens are unpacked."""

    def __init__(self, matrix: Packed, dtype: torch.dtype, scale: torch.Tensor | None = None) -> None:
        super().__init__()
        self.matrix, self.dtype = matrix, dtype
        self.scale = None if scale is None else nn.Buffer(scale.to(dtype), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.matrix.floats(tokens.reshape(-1)).to(self.dtype).view(*tokens.shape, -1)
        return rows if self.scale is None else rows * self.scale


def is_packed(module: Any) -> bool:
    """Return whether the module's matrices are blocks on a device."""
    return any(isinstance(part, PackedMatrix) for part in module.modules())


def in_packed_blocks(loaded: FileModule) -> Any:
    """Return the module with its matrices as blocks on the device. Made once, it stays so."""
    module, device = loaded.module, torch.device(loaded.device)
    names = {id(tensor): name for name, tensor in stored(module).items()}
    made: dict[str, list[Packed]] = {}
    for parent in list(module.modules()):
        for called, child in list(parent.named_children()):
            first = "gate_up_proj" if getattr(child, "has_gate", False) else "up_proj"
            stacks = [names.get(id(getattr(child, one, None)), "") for one in (first, "down_proj")]
            if loaded.matrices.keys() >= set(stacks):
                pieces = [piece for stack in stacks for piece in loaded.matrices[stack].pieces]
                packed = [pack(kind, rows, device, module.dtype, order) for kind, rows, order in pieces]
                biases = [bias.to(device) for bias in _biases(child)]
                experts = PackedExperts(packed, child.num_experts, activation_of(child), biases)
                setattr(parent, called, experts)
                continue
            name = names.get(id(getattr(child, "weight", None)), "")
            if name not in loaded.matrices:
                continue
            raw = loaded.matrices[name]
            if name not in made:  # an embedding may be the output as well
                made[name] = [
                    pack(kind, rows, device, module.dtype, order) for kind, rows, order in raw.pieces
                ]
            if isinstance(child, nn.Linear | nn.Embedding):
                setattr(parent, called, _packed(child, made[name], raw.columns, module.dtype))
            else:
                (matrix,) = made[name]
                child.weight = PackedWeight(matrix)
    return module.to(device)


def activation_of(experts: Any) -> Activation:
    """Return the function between the matrices of a module's experts: of up(x), or of gate(x) and up(x)."""
    if not experts.has_gate:
        return experts.act_fn
    if experts.is_concatenated:
        return lambda gate, up: experts.act_fn(gate) * up
    return lambda gate, up: experts._apply_gate(torch.stack([gate, up], -1).flatten(-2))


def _biases(experts: Any) -> list[torch.Tensor]:
    """Return the biases of gpt-oss' experts, whose gate and up are in turn; none for other modules."""
    if not experts.has_bias:
        return []
    both = experts.gate_up_proj_bias
    return [both[:, ::2].contiguous(), both[:, 1::2].contiguous(), experts.down_proj_bias]


def _packed(
    layer: nn.Module, pieces: list[Packed], columns: NDArray[np.int64] | None, dtype: torch.dtype
) -> nn.Module:
    """Return what computes an embedding or a linear layer by its matrix, in pieces above one another."""
    if isinstance(layer, nn.Embedding):
        return PackedLookup(pieces[0], dtype, getattr(layer, "embed_scale", None))
    assert isinstance(layer, nn.Linear)
    matrix: nn.Module = PackedMatrix(pieces[0], layer.bias)
    if len(pieces) > 1:
        assert layer.bias is None
        matrix = JoinedMatrices(map(PackedMatrix, pieces))
    # Column c of the module's matrix is column `columns[c]` of the file's, which multiplies the input c
    return matrix if columns is None else nn.Sequential(Reordered(np.argsort(columns)), matrix)
