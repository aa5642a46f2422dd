"""Put matrices in the blocks of their file into a transformers module on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hierchat.engine.cuda.kernels import kernel
from hierchat.engine.cuda.packed import Packed, pack
from hierchat.engine.cuda.packed_experts import Activation, PackedExperts
from hierchat.models.formats.gguf_module import RawMatrix, stored
from hierchat.models.load.load_model import FileModule
from hierchat.models.progress import DeviceError

CHECKED = 64
"""Outputs of a product that are compared."""
TOLERANCE = 0.01
"""Largest error of an output, as a part of the sizes that are added."""


class PackedMatrix(nn.Module):
    """Linear layer y = x W^T + b over blocks on a device; x [..., in], y [..., out], of one dtype."""

    def __init__(self, matrix: Packed, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.matrix, self.bias = matrix, bias
        self.in_features, self.out_features = matrix.inputs, matrix.outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = kernel("multiply", x.device)(x, self.matrix, self.bias)
        return product.view(*x.shape[:-1], -1)


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
    """Return whether our product computes a module's matrices on a device, those of experts row by row."""
    parts = list(module.modules())
    stacks = (getattr(part, "down_proj", None) for part in parts)
    return any(isinstance(part, PackedMatrix) for part in parts) and not any(
        isinstance(stack, nn.Parameter) for stack in stacks
    )


def in_packed_blocks(loaded: FileModule) -> Any:
    """Return the module with its matrices as blocks on the device. Made once, it stays so. Raises DeviceError where our
    product is wrong."""
    module, device = loaded.module, torch.device(loaded.device)

    def packed(name: str) -> list[Packed]:
        pieces = loaded.matrices[name].pieces
        return [pack(kind, rows, device, module.dtype, order) for kind, rows, order in pieces]

    replace_matrices(module, loaded.matrices, packed)
    module = module.to(device)
    for name, matrix in {one.name: one for one in packed_matrices(module)}.items():
        if not is_right(matrix, module.dtype):
            raise DeviceError(f"{loaded.device} computes wrong products of {name} blocks.")
    return module


def replace_matrices(
    module: nn.Module, matrices: Mapping[str, RawMatrix | None], packed: Callable[[str], list[Packed]]
) -> None:
    """Let our product compute a module's matrices of these names, which `packed` lays out: one piece, several above one
    another, or two or three of a stack of experts' matrices. What they were made of is forgotten."""
    names = {id(tensor): name for name, tensor in stored(module).items()}
    made: dict[str, list[Packed]] = {}
    for parent in list(module.modules()):
        for called, child in list[tuple[str, Any]](parent.named_children()):
            first = "gate_up_proj" if getattr(child, "has_gate", False) else "up_proj"
            stacks = [names.get(id(getattr(child, one, None)), "") for one in (first, "down_proj")]
            if matrices.keys() >= set(stacks):
                pieces = [piece for stack in stacks for piece in packed(stack)]
                biases = [bias.to(pieces[0].codes.device) for bias in _biases(child)]
                experts = PackedExperts(pieces, child.num_experts, activation_of(child), biases)
                setattr(parent, called, experts)
                child._parameters.clear()
                continue
            name = names.get(id(getattr(child, "weight", None)), "")
            if name not in matrices:
                continue
            raw = matrices[name]
            if name not in made:  # an embedding may be the output as well
                made[name] = packed(name)
            if isinstance(child, nn.Linear | nn.Embedding):
                columns, dtype = raw.columns if raw else None, child.weight.dtype
                setattr(parent, called, _packed(child, made[name], columns, dtype))
                child._parameters.clear()
            else:
                (matrix,) = made[name]
                child.weight = PackedWeight(matrix)


def packed_matrices(module: nn.Module) -> Iterator[Packed]:
    """Yield the matrices of a module's layers, embeddings and experts that are laid out for our product."""
    for part in module.modules():
        if isinstance(part, PackedMatrix | PackedLookup):
            yield part.matrix
        elif isinstance(part, PackedExperts):
            yield from part.matrices


def is_right(matrix: Packed, dtype: torch.dtype) -> bool:
    """Return whether the first outputs of our product on this device are those of the matrix's floats."""
    rows = torch.arange(min(CHECKED, matrix.outputs), device=matrix.codes.device)
    x = torch.randn(2, matrix.inputs, device=matrix.codes.device).to(dtype)
    weights, found = matrix.floats(rows), PackedMatrix(matrix)(x)[:, rows].float()
    sizes = x.float().abs() @ weights.abs().T
    return bool(((found - x.float() @ weights.T).abs() <= TOLERANCE * sizes).all())


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
