"""Linear layers of transformers' modules packed to float16 on a processor."""

from __future__ import annotations

import torch
from torch import nn


class PackedLinear(nn.Module):
    """Linear layer y = x W^T + b with W in float16 blocks (FBGEMM); x [..., in], y [..., out], sums in float32.
    At least twice as fast as float32 if memory is the bound."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def can_pack(model: nn.Module) -> bool:
    """Tell whether FBGEMM is there and no weight leaves float16's range."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    limit = torch.finfo(torch.float16).max
    ranges = [one.weight.detach().aminmax() for one in model.modules() if type(one) is nn.Linear]
    return bool(ranges) and all(-limit < low and high < limit for low, high in ranges)


def pack(model: nn.Module) -> None:
    """Replace every nn.Linear of `model` in place; its float32 weight is freed unless something else holds it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
    # Other parameters would keep the whole mapped file in memory.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
