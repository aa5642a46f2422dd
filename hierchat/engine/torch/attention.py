"""Attention of a segment over key-value slots, in which every row is summed in order of position.

Registered with transformers as an attention implementation, so that its own modules call it. A node gets the same
bits in any segment: a score is one dot product wherever its slot lies, softmax is per row over scores in order of
position, and the products with the values are taken per chunk and added one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from hierchat.engine.torch.layout import CHUNK, Branches, SegmentLayout

NAME = "hierchat_segment"


def block_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, nodes, d]
    key: torch.Tensor,  # [1, kv, slots, d], all slots
    value: torch.Tensor,  # [1, kv, slots, d]
    attention_mask: torch.Tensor | None,
    scaling: float,
    segment: SegmentLayout,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Returns ([1, nodes, heads, d], None), as transformers asks."""
    if unused.get("softcap"):
        raise NotImplementedError("attention with soft-capped scores is not built")
    if segment.plain:
        seen = slice(0, segment.start + 1)
        out = functional.scaled_dot_product_attention(
            query, key[:, :, seen], value[:, :, seen], scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None

    heads, _, width = query.shape[1:]
    kv = key.shape[1]
    group = heads // kv
    keys, values = key[0, :, : segment.view], value[0, :, : segment.view]

    rows = query[0].view(kv, group, -1, width).transpose(1, 2).index_select(1, segment.rows)
    rows = rows.reshape(kv, -1, width)  # [kv, rows * group, d]
    scores = torch.baddbmm(
        segment.mask, rows, keys.transpose(1, 2), alpha=scaling
    )  # [kv, rows * group, view]
    if segment.branches is None:
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        out = torch.zeros_like(rows, dtype=torch.float32)
        _add_weighed(out, weights, values)
    else:
        out = _weigh_branches(scores, values, segment.branches)
    out = (
        out.to(query.dtype).view(kv, -1, group, width).index_select(1, segment.place)
    )  # [kv, nodes, group, d]
    return out.transpose(0, 1).reshape(1, segment.nodes, heads, width), None


def _add_weighed(total: torch.Tensor, weights: torch.Tensor, values: torch.Tensor) -> None:
    """Add values [batch, n, d] by weights [batch, rows, n] to total [batch, rows, d], chunk after chunk.

    The first product is added to zeros as every later one is to the sum: all chunks go through one kernel. The sum is
    float32, also of products in half precision.
    """
    for at in range(0, values.shape[1], CHUNK):
        chunk = weights[:, :, at : at + CHUNK], values[:, at : at + CHUNK]
        if values.dtype == total.dtype:
            total.baddbmm_(*chunk)
        else:
            total += torch.bmm(*chunk)


def _weigh_branches(scores: torch.Tensor, values: torch.Tensor, branches: Branches) -> torch.Tensor:
    """The same for a tree: from `shared` on, scores and values are put into each branch's order of position."""
    kv, rows, _ = scores.shape
    shared, count, width = branches.shared, branches.count, values.shape[-1]
    tail = scores[:, :, shared:].gather(2, branches.columns.expand(kv, -1, -1))
    ordered = torch.cat((scores[:, :, :shared], tail), dim=2) if shared else tail
    weights = torch.softmax(ordered, dim=-1, dtype=torch.float32).to(values.dtype)

    total = values.new_zeros(kv, rows, width, dtype=torch.float32)
    _add_weighed(total, weights[:, :, :shared], values[:, :shared])
    own = values.index_select(1, branches.slots).view(kv * count, -1, width)
    branch_weights = weights.view(kv * count, rows // count, -1)[:, :, shared:]
    _add_weighed(total.view(kv * count, rows // count, width), branch_weights, own)
    return total


AttentionInterface.register(NAME, block_attention)
