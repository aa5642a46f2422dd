"""Matrices of transformers' modules in the blocks of their file, multiplied by the CPU engine's kernels.

Rows never mix there: a row's bits are the same in every segment. A forward reads as many bytes as the file has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hierchat.engine.cpu.multiply import Multiplier
from hierchat.models.formats.block_model import Matrix


class BlockLinear(nn.Module):
    """y = x W^T + b; x [..., in], y [..., out], float32."""

    def __init__(self, matrix: Matrix, multiplier: Multiplier, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.matrix, self.bias = matrix, bias
        self.multiplier = multiplier
        self._columns, self._places = _index(matrix.columns), _index(matrix.places)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if self._columns is not None:
            rows = rows.index_select(1, self._columns)
        given = rows.contiguous().numpy()
        out = self._together([self.multiplier(piece, given, len(given)) for piece in self.matrix.pieces])
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], -1)

    def by_expert(
        self, rows: torch.Tensor, experts: Sequence[int], begins: Sequence[int], counts: Sequence[int]
    ) -> torch.Tensor:
        """Multiply rows with their experts: rows [places, in], of which counts[n] from begins[n] on are for experts[n];
        each has the `room` that so many take. [places, out]"""
        given, pieces = rows.contiguous().numpy(), self.matrix.pieces
        heights = [piece.rows // self.matrix.experts for piece in pieces]
        return self._together(
            [
                self.multiplier.several(piece, height, experts, begins, counts, given)
                for piece, height in zip(pieces, heights, strict=True)
            ]
        )

    def _together(self, pieces: list[Any]) -> torch.Tensor:
        if self._places is None:
            return torch.from_numpy(pieces[0])
        return torch.from_numpy(np.concatenate(pieces, axis=1))[:, self._places]


class BlockEmbedding(nn.Module):
    """What an embedding does with its rows, of which those of the tokens are restored."""

    def __init__(self, embedding: nn.Embedding, matrix: Matrix) -> None:
        super().__init__()
        self.embedding, self.matrix = embedding, matrix
        self._hold(torch.empty(0, embedding.embedding_dim))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        (blocks,) = self.matrix.pieces
        self._hold(torch.from_numpy(blocks.floats(tokens.reshape(-1).numpy())))
        return self.embedding(torch.arange(tokens.numel()).view(tokens.shape))

    def _hold(self, rows: torch.Tensor) -> None:
        self.embedding.weight = nn.Parameter(rows, requires_grad=False)


def multiplier_of(module: Any) -> Multiplier | None:
    """Return the multiplier of the matrices in blocks; None where there are none."""
    return next((part.multiplier for part in module.modules() if isinstance(part, BlockLinear)), None)


def _index(numbers: Any) -> torch.Tensor | None:
    return None if numbers is None else torch.from_numpy(np.array(numbers))


# Linear layers packed to float16 for the CPU (FBGEMM), with float32 activations and sums. Twice the speed
# of float32 and more where memory is the bound, and a forward over several rows costs little more than one
# over a single row: that is what makes verification cheap. Weights are rounded to float16 once, at load.


class PackedLinear(nn.Module):
    """y = x W^T + b with W in float16 blocks; x [..., in], y [..., out], float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(model: nn.Module) -> bool:
    """FBGEMM is there, and no weight leaves float16's range."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    limit = torch.finfo(torch.float16).max
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    for linear in linears:
        low, high = linear.weight.detach().aminmax()
        if not (-limit < low and high < limit):
            return False
    return bool(linears)


def pack(model: nn.Module) -> None:
    """Replace every nn.Linear of `model` in place; its float32 weight is freed unless something else holds it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
    # What is left lies in the mapped file, all of which would stay in memory.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
