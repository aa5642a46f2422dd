"""Where each node of a segment stands: rows, branches and positions of one forward.

A row's attention is summed in order of position over chunks of fixed size, whatever else is in the segment. Slots of a
chain are in order of position as they lie; for a tree this module says how to reorder them branch by branch
(docs/architecture.md: exact trees).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from transformers.masking_utils import causal_mask_function

CHUNK = 128
"""Positions per product of weights and values; chunks are added in order of position."""
ROWS = 8
"""Rows of a branch are padded to a multiple of this: matrix kernels treat the rest of a smaller group differently."""

Rule: TypeAlias = Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor]
"""What of a text a layer's positions see, as transformers says it: (0, 0, own positions, others) to booleans."""


@dataclass(frozen=True, slots=True)
class Branches:
    """The part of a tree's layout that a chain does not need. Positions from `shared` on are reordered per branch."""

    shared: int
    """A multiple of CHUNK: below it slots are positions, for every branch."""
    columns: torch.Tensor
    """[rows, tail] slot, counted from `shared`, of each position of the row's own branch."""
    slots: torch.Tensor
    """[branches * tail] slot of each position of each branch."""
    count: int


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """One forward over `nodes` positions in slots start .. start + nodes, looking at `view` slots."""

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
    """Of scores."""
    branches: Branches | None = None
    """None for a chain."""
    plain: bool = False
    """A single node whose bits need not equal those of other segments: the fastest kernels may be used."""
    _known: dict[tuple[object, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, rule: Rule = causal_mask_function, group: int = 1) -> torch.Tensor:
        """[rows * group, view] 0 where a row sees the slot, -inf elsewhere, in layers of this rule whose keys are
        shared by `group` query heads."""
        if (known := self._known.get((rule, group))) is not None:
            return known
        hidden = ~(self.own & rule(0, 0, self.positions[:, None], self.places[None]))
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device)
        mask = mask.masked_fill_(hidden, float("-inf"))[self.rows].repeat_interleave(group, dim=0)
        self._known[rule, group] = mask
        return mask

    def columns(self, group: int) -> torch.Tensor:
        """The branches' columns for each of `group` query heads, [rows * group, tail]."""
        assert self.branches is not None
        if (known := self._known.get(("columns", group))) is None:
            known = self._known["columns", group] = self.branches.columns.repeat_interleave(group, dim=0)
        return known

    def seen(self, rule: Rule) -> slice | None:
        """The slots that a plain segment sees; None where they do not follow each other."""
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
    """Layout of a segment behind `start` slots; parents[i] < i is the node that node i follows, -1 the committed text.

    `bucket`, a multiple of CHUNK: the view's length is a multiple of it.
    """
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} follows {parent}: parents must come first")
        paths.append([*paths[parent], node] if parent >= 0 else [node])
    followed = set(parents)
    branches = [paths[node] for node in range(len(parents)) if node not in followed]
    members: list[list[int]] = []
    taken: set[int] = set()
    for branch in branches:
        members.append([node for node in branch if node not in taken])
        taken.update(branch)

    height = _multiple(max(len(own) for own in members), ROWS)
    view = _multiple(start + len(parents), bucket)
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


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of
