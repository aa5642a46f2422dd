"""Compute experts of transformers' models with matrices in the blocks of their file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat

import torch
from torch import nn

from hierchat.engine.cuda.kernels import kernel
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
        routing = kernel("grouped", x.device)(chosen, self.experts)
        product = partial(kernel("multiply", x.device), routing=routing)
        *inner, down = zip(self.matrices, self.biases or repeat(None), strict=False)
        found: torch.Tensor = self.activation(*[product(x, *one) for one in inner])
        return product(found, *down, weights=weights)
