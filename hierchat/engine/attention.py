"""Attention of a block over key-value slots, in which every row is summed in order of position.

Registered with transformers as an attention implementation, so that its own modules call it. Same bits for a node in
any block: scores and products are taken per chunk of CHUNK positions in matrix products of one shape, softmax is per
row, and chunks are added one after the other (a cumulative sum).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from hierchat.engine.layout import CHUNK, BlockLayout

NAME = "hierchat_block"


def block_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, nodes, d]
    key: torch.Tensor,  # [1, kv, slots, d], all slots
    value: torch.Tensor,  # [1, kv, slots, d]
    attention_mask: torch.Tensor | None,
    scaling: float,
    block: BlockLayout,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Returns ([1, nodes, heads, d], None), as transformers asks."""
    if block.plain:
        seen = slice(0, block.start + 1)
        out = functional.scaled_dot_product_attention(
            query, key[:, :, seen], value[:, :, seen], scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None
    heads, _, width = query.shape[1:]
    kv = key.shape[1]
    group = heads // kv
    branches, height = block.rows.shape
    tail = block.mask.shape[-1]

    # [kv, branches, group * height, d]: one matrix per key-value head and branch
    rows = (query[0] * scaling)[:, block.rows.view(-1)].view(kv, group, branches, height, width)
    rows = rows.transpose(1, 2).reshape(kv, branches, group * height, width)

    shared_chunks = block.shared // CHUNK
    if block.gather is None:
        keys = key[0, :, : block.view].view(kv, 1, -1, CHUNK, width)
        values = value[0, :, : block.view].view(kv, 1, -1, CHUNK, width)
        scores = torch.matmul(rows.unsqueeze(2), keys.transpose(-1, -2))  # [kv, 1, chunks, rows, CHUNK]
    else:
        own_keys = key[0][:, block.gather.view(-1)].view(kv, branches, tail // CHUNK, CHUNK, width)
        own_values = value[0][:, block.gather.view(-1)].view(kv, branches, tail // CHUNK, CHUNK, width)
        scores = torch.matmul(rows.unsqueeze(2), own_keys.transpose(-1, -2))
        if shared_chunks:
            shared_keys = key[0, :, : block.shared].view(kv, 1, shared_chunks, CHUNK, width)
            scores = torch.cat(
                (torch.matmul(rows.unsqueeze(2), shared_keys.transpose(-1, -2)), scores), dim=2
            )
    chunks = scores.shape[2]
    scores = scores.transpose(2, 3).reshape(kv, branches, group, height, chunks * CHUNK)
    scores[..., block.shared :] += block.mask[:, None].to(scores.dtype)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = weights.view(kv, branches, group * height, chunks, CHUNK).transpose(2, 3)

    if block.gather is None:
        parts = torch.matmul(weights, values)  # [kv, branches, chunks, rows, d]
    else:
        parts = torch.matmul(weights[:, :, shared_chunks:], own_values)
        if shared_chunks:
            shared_values = value[0, :, : block.shared].view(kv, 1, shared_chunks, CHUNK, width)
            parts = torch.cat((torch.matmul(weights[:, :, :shared_chunks], shared_values), parts), dim=2)
    out = parts.cumsum(dim=2)[:, :, -1]  # sequential, so that trailing empty chunks change nothing
    out = out.view(kv, branches, group, height, width).permute(1, 3, 0, 2, 4)  # branch, row, kv, group, d
    return out.reshape(branches * height, heads, width)[block.place].unsqueeze(0), None


AttentionInterface.register(NAME, block_attention)
