"""Compute experts of transformers' models with matrices in the blocks of their file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat

import torch
from torch import nn

from hierchat.engine.cuda.packed import Packed

Activation = Callable[..., torch.Tensor]


class PackedExperts(nn.Module):
    """Experts y = down(activation(gate(x), up(x))), or without a gate down(activation(up(x))), in place of a module of
    transformers. The two or three `matrices`, down last, have the rows of all experts, one expert after the other.
    `biases` [experts, outputs]: one for each matrix, or none."""

    def __init__(
        self,
        matrices: Sequence[Packed],
        experts: int,
        activation: Activation,
        biases: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self.matrices, self.biases = matrices, biases
        self.experts, self.activation = experts, activation

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of rows [rows, hidden] over the experts that each chose, int64 [rows, active], in
        that order."""
        product = partial(multiply_chosen_plainly, chosen=chosen, experts=self.experts)
        if x.device.type == "cuda":
            from hierchat.engine.cuda.triton_blocks import grouped, multiply

            product = partial(multiply, routing=grouped(chosen, self.experts))
        *inner, down = zip(self.matrices, self.biases or repeat(None), strict=False)
        return product(self.activation(*[product(x, *one) for one in inner]), *down, weights=weights)


def multiply_chosen_plainly(
    x: torch.Tensor,
    matrix: Packed,
    bias: torch.Tensor | None = None,
    *,
    chosen: torch.Tensor,
    experts: int,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute in plain torch what triton_blocks.multiply computes for a routing, one pair at a time."""
    matrices = matrix.floats().view(experts, -1, matrix.inputs)
    rows = x.float().repeat_interleave(chosen.numel() // len(x), 0)
    pairs = zip(chosen.flatten().tolist(), rows, strict=True)
    out = torch.stack([torch.mv(matrices[expert], row) for expert, row in pairs])
    if bias is not None:
        out += bias[chosen.flatten()].float()
    if weights is not None:
        first, *others = (out.view(*weights.shape, -1) * weights.float()[..., None]).unbind(1)
        out = sum(others, first)
    return out.to(x.dtype)
