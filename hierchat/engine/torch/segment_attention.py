"""Compute attention of a segment over key-value slots, every row summed in order of position, for transformers.
A node gets the same bits in any segment: a score is one dot product, softmax is per row, and products with values
are taken per chunk and added in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

CHUNK = 128
"""Positions per product of weights and values; chunks are added in order of position."""
ROWS = 8
"""Rows of a branch are padded to a multiple of this: matrix kernels treat the rest of a smaller group differently."""

Rule: TypeAlias = Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor]
"""What of a text a layer's positions see, as transformers says it: (0, 0, own positions, others) to booleans."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Layout of a tree beyond a chain: positions from `shared` on are reordered per branch (docs/architecture.md)."""

    shared: int
    """A multiple of CHUNK: below it slots are positions, for every branch."""
    columns: torch.Tensor
    """[rows, tail] slot, counted from `shared`, of each position of the row's own branch."""
    slots: torch.Tensor
    """[branches * tail] slot of each position of each branch."""
    count: int


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Layout of one forward over `nodes` positions in slots start .. start + nodes, which looks at `view` slots."""

    start: int
    view: int
    """A multiple of CHUNK."""
    nodes: int
    rows: torch.Tensor
    """[rows] node of each row, branch by branch; padding repeats node 0."""
    place: torch.Tensor
    """[nodes] row of each node."""
    own: torch.Tensor
    """[nodes, view] whether the slot holds the node's own text."""
    positions: torch.Tensor
    """[nodes] absolute positions."""
    places: torch.Tensor
    """[view] the position of what each slot holds; 0 where that is nothing."""
    dtype: torch.dtype
    """Type of scores."""
    branches: Branches | None = None
    """None for a chain."""
    plain: bool = False
    """A single node whose bits need not equal those of other segments: the fastest kernels may be used."""
    _known: dict[tuple[object, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, rule: Rule = causal_mask_function, group: int = 1) -> torch.Tensor:
        """Return a mask [rows * group, view] for layers of this rule: 0 if a row sees the slot, else -inf."""
        if (known := self._known.get((rule, group))) is not None:
            return known
        hidden = ~(self.own & rule(0, 0, self.positions[:, None], self.places[None]))
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device)
        mask = mask.masked_fill_(hidden, float("-inf"))[self.rows].repeat_interleave(group, dim=0)
        self._known[rule, group] = mask
        return mask

    def columns(self, group: int) -> torch.Tensor:
        """Return the branches' columns for each of `group` query heads, [rows * group, tail]."""
        assert self.branches is not None
        if (known := self._known.get(("columns", group))) is None:
            known = self._known["columns", group] = self.branches.columns.repeat_interleave(group, dim=0)
        return known

    def seen(self, rule: Rule) -> slice | None:
        """Return the slots that a plain segment sees; None where they do not follow each other."""
        if rule is causal_mask_function:
            return slice(0, self.start + 1)
        places = torch.arange(self.start + 1)
        seen = rule(0, 0, torch.tensor([self.start]), places).nonzero()[:, -1]
        first, last = int(seen[0]), int(seen[-1])
        return slice(first, last + 1) if last - first + 1 == len(seen) else None


def lay_out(
    start: int,
    parents: Sequence[int],
    *,
    bucket: int = CHUNK,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> SegmentLayout:
    """Lay out a segment after `start` slots; parents[i] < i, -1 for committed text."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*paths[parent], node] if parent >= 0 else [node])
    followed = set(parents)
    branches = [paths[node] for node in range(len(parents)) if node not in followed]
    members: list[list[int]] = []
    taken: set[int] = set()
    for branch in branches:
        members.append([node for node in branch if node not in taken])
        taken.update(branch)

    height = -(-max(len(own) for own in members) // ROWS) * ROWS
    view = -(-(start + len(parents)) // bucket) * bucket
    rows = torch.zeros(len(branches) * height, dtype=torch.long)
    place = torch.zeros(len(parents), dtype=torch.long)
    for index, own in enumerate(members):
        at = index * height + torch.arange(len(own))
        rows[at] = torch.tensor(own)
        place[torch.tensor(own)] = at
    positions = start + torch.tensor([len(path) - 1 for path in paths])

    text = torch.zeros(len(parents), view, dtype=torch.bool)
    text[:, :start] = True
    for node, path in enumerate(paths):
        text[node, start + torch.tensor(path)] = True
    places = torch.zeros(view, dtype=torch.long)
    places[:start] = torch.arange(start)
    places[start : start + len(parents)] = positions
    return SegmentLayout(
        start,
        view,
        len(parents),
        rows.to(device),
        place.to(device),
        text.to(device),
        positions.to(device),
        places.to(device),
        dtype,
        None if len(branches) == 1 else _branches(start, view, branches, height, device),
    )


def _branches(
    start: int, view: int, branches: Sequence[Sequence[int]], height: int, device: torch.device | str
) -> Branches:
    shared = start - start % CHUNK
    order = torch.arange(shared, view).repeat(len(branches), 1)  # slot of each position, branch by branch
    for index, branch in enumerate(branches):
        order[index, start - shared : start - shared + len(branch)] = start + torch.tensor(branch)
        rest = [node for node in range(view - start) if node not in set(branch)]
        order[index, start - shared + len(branch) :] = start + torch.tensor(rest, dtype=torch.long)
    columns = (order - shared).repeat_interleave(height, dim=0)
    return Branches(shared, columns.to(device), order.view(-1).to(device), len(branches))


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
    """Compute attention as transformers asks: ([1, nodes, heads, d of values], None). `softcap` bounds scores; `s_aux`
    [heads] are sinks."""
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
    kv, rows, _ = scores.shape
    columns = scores.new_full((kv, rows, SINK_COLUMNS), float("-inf"))
    columns[:, :, 0] = sinks.view(kv, 1, group).expand(kv, rows // group, group).reshape(kv, rows)
    return columns


def _weights(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32)
    return torch.softmax(torch.cat((sinks, scores), dim=-1), dim=-1, dtype=torch.float32)[..., SINK_COLUMNS:]


def _add_weighed(total: torch.Tensor, weights: torch.Tensor, values: torch.Tensor) -> None:
    """Add values [batch, n, d] by weights [batch, rows, n] to float32 `total` [batch, rows, d], chunk after chunk.
    The first product is added to zeros, so that all chunks use one kernel."""
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
    """Weigh values for a tree: from `shared` on, scores and values are put into each branch's order of position."""
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
    """Attention rule that transformers hands on to every layer in place of the mask that it would make by it."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __getitem__(self, rows: object) -> Sight:
        """Return all rows: Gemma 4 takes those whose logits it needs, here every one."""
        return self


AttentionInterface.register(NAME, block_attention)
AttentionMaskInterface.register(NAME, lambda *, mask_function, **unused: Sight(mask_function))
