"""Attention over static slots: every row alone, over its own text in order of position.

Registered with transformers as an attention implementation. On CUDA it is a Triton kernel; elsewhere the same is said
in plain torch, slowly, so that all around it can be tested without a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from hierchat.engine.cuda.static_segment import StaticSegment

NAME = "hierchat_rows"


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, d]
    key: torch.Tensor,  # [1, kv, slots, d], all slots
    value: torch.Tensor,  # [1, kv, slots, d]
    attention_mask: torch.Tensor | None,
    scaling: float,
    segment: StaticSegment,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Returns ([1, rows, heads, d], None), as transformers asks."""
    if unused.get("softcap"):
        raise NotImplementedError("attention with soft-capped scores is not built")
    places = (segment.positions, segment.start, segment.paths)
    if query.device.type == "cuda":
        from hierchat.engine.cuda.triton_attention import attend

        return attend(query[0], key[0], value[0], *places, segment.view, scaling)[None], None
    return attend_plainly(query[0], key[0], value[0], *places, scaling)[None], None


def attend_plainly(
    query: torch.Tensor,  # [heads, rows, d]
    keys: torch.Tensor,  # [kv, slots, d]
    values: torch.Tensor,  # [kv, slots, d]
    positions: torch.Tensor,  # [rows]
    start: torch.Tensor,  # [1]
    paths: torch.Tensor,  # [rows, depth]
    scale: float,
) -> torch.Tensor:
    """What triton_attention.attend computes: [rows, heads, d]."""
    out = []
    for row, last in enumerate(positions.tolist()):
        committed = min(last + 1, int(start))
        own = torch.cat((torch.arange(committed), paths[row, : last + 1 - committed]))
        asked = query[:, row].unflatten(0, (len(keys), -1))  # [kv, group, d]
        scores = torch.bmm(asked, keys[:, own].transpose(1, 2)) * scale
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
        out.append(torch.bmm(weights, values[:, own]).flatten(0, 1))
    return torch.stack(out)


AttentionInterface.register(NAME, row_attention)
