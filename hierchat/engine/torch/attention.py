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
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from hierchat.engine.torch.layout import CHUNK, Branches, Rule, SegmentLayout

NAME = "hierchat_segment"
SINK_COLUMNS = 16
"""Columns before the scores where there are sinks: so the scores keep their places within a processor's registers."""


def block_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, nodes, d]
    key: torch.Tensor,  # [1, kv, slots, d], all slots
    value: torch.Tensor,  # [1, kv, slots, d of values]
    attention_mask: Sight | None,
    scaling: float,
    segment: SegmentLayout,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Returns ([1, nodes, heads, d of values], None), as transformers asks. `softcap` bounds scores; `s_aux` [heads]
    are sinks: scores that take a share of the weights and have no value."""
    rule = attention_mask.rule if attention_mask else causal_mask_function
    if segment.plain and not softcap and s_aux is None and (seen := segment.seen(rule)):
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
    mask = segment.mask(rule, group)
    if softcap:
        scores = torch.bmm(rows, keys.transpose(1, 2)) * (scaling / softcap)
        scores = torch.tanh(scores) * softcap + mask
    else:
        scores = torch.baddbmm(mask, rows, keys.transpose(1, 2), alpha=scaling)  # [kv, rows * group, view]
    sinks = None if s_aux is None else _sinks(s_aux.to(scores.dtype), scores, group)
    if segment.branches is None:
        weights = _weights(scores, sinks).to(query.dtype)
        out = values.new_zeros((kv, rows.shape[1], values.shape[-1]), dtype=torch.float32)
        _add_weighed(out, weights, values)
    else:
        out = _weigh_branches(scores, sinks, values, segment.branches, segment.columns(group))
    out = out.to(query.dtype).view(kv, -1, group, values.shape[-1]).index_select(1, segment.place)
    return out.transpose(0, 1).reshape(1, segment.nodes, heads, -1), None


def _sinks(sinks: torch.Tensor, scores: torch.Tensor, group: int) -> torch.Tensor:
    """Columns to stand before scores [kv, rows * group, view]: the sink of each row's head, and nothing else."""
    kv, rows, _ = scores.shape
    columns = scores.new_full((kv, rows, SINK_COLUMNS), float("-inf"))
    columns[:, :, 0] = sinks.view(kv, 1, group).expand(kv, rows // group, group).reshape(kv, rows)
    return columns


def _weights(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32)
    return torch.softmax(torch.cat((sinks, scores), dim=-1), dim=-1, dtype=torch.float32)[..., SINK_COLUMNS:]


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


def _weigh_branches(
    scores: torch.Tensor,
    sinks: torch.Tensor | None,
    values: torch.Tensor,
    branches: Branches,
    columns: torch.Tensor,
) -> torch.Tensor:
    """The same for a tree: from `shared` on, scores and values are put into each branch's order of position."""
    kv, rows, _ = scores.shape
    shared, count, width = branches.shared, branches.count, values.shape[-1]
    tail = scores[:, :, shared:].gather(2, columns.expand(kv, -1, -1))
    ordered = torch.cat((scores[:, :, :shared], tail), dim=2) if shared else tail
    weights = _weights(ordered, sinks).to(values.dtype)

    total = values.new_zeros(kv, rows, width, dtype=torch.float32)
    _add_weighed(total, weights[:, :, :shared], values[:, :shared])
    own = values.index_select(1, branches.slots).view(kv * count, -1, width)
    branch_weights = weights.reshape(kv * count, rows // count, -1)[:, :, shared:]
    _add_weighed(total.view(kv * count, rows // count, width), branch_weights, own)
    return total


class Sight:
    """What transformers hands on to every layer in place of a mask: the rule by which it would make one."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __getitem__(self, rows: object) -> Sight:
        """Gemma 4 takes the rows whose logits it needs, here all of them."""
        return self


def sight(*, mask_function: Rule, **unused: Any) -> Sight:
    """See Sight."""
    return Sight(mask_function)


AttentionInterface.register(NAME, block_attention)
AttentionMaskInterface.register(NAME, sight)
