"""Where each node of a block stands: branches, rows and positions of one forward.

Keys of a branch are always laid out in order of position, so a node's attention sums the same numbers in the same
order whatever else is in the block (docs/architecture.md: exact trees).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

CHUNK = 64
"""Positions per product of probabilities and values; chunks are added in order of position."""
ROWS = 8
"""Rows of a branch are padded to a multiple of this: matrix kernels treat the rest of a smaller group differently."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """One forward over `nodes` positions in slots start .. start + nodes.

    Slots below `shared` (a multiple of CHUNK) belong to every branch; from there on each branch has its own order.
    """

    start: int
    shared: int
    view: int
    """Slots that a forward without side branches looks at (a multiple of CHUNK)."""
    nodes: int
    rows: torch.Tensor
    """[branches, rows] node of each row; padding repeats node 0."""
    place: torch.Tensor
    """[nodes] index of each node in the flattened rows."""
    gather: torch.Tensor | None
    """[branches, tail] slot of each position from `shared` on; None when slots are in order of position."""
    mask: torch.Tensor
    """[branches, rows, tail] float: 0 where the row sees the position, -inf elsewhere."""
    positions: torch.Tensor
    """[nodes] absolute positions."""
    plain: bool = False
    """A single node whose bits need not equal those of other blocks: the fastest kernels may be used."""


def lay_out(start: int, parents: Sequence[int], device: torch.device | str = "cpu") -> BlockLayout:
    """Layout of a block; `parents[i]` < i is the node that node i follows, -1 for the first."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} follows {parent}: parents must come first")
        paths.append([*paths[parent], node] if parent >= 0 else [node])
    followed = set(parents)
    leaves = [node for node in range(len(parents)) if node not in followed]
    branches = [paths[leaf] for leaf in leaves]
    members: list[list[int]] = []
    taken: set[int] = set()
    for branch in branches:
        members.append([node for node in branch if node not in taken])
        taken.update(branch)

    shared = start - start % CHUNK
    deepest = max(len(branch) for branch in branches)
    tail = -(-(start + deepest - shared) // CHUNK) * CHUNK
    height = -(-max(len(own) for own in members) // ROWS) * ROWS
    rows = torch.zeros(len(branches), height, dtype=torch.long)
    place = torch.zeros(len(parents), dtype=torch.long)
    for index, own in enumerate(members):
        rows[index, : len(own)] = torch.tensor(own)
        place[torch.tensor(own)] = index * height + torch.arange(len(own))
    depths = torch.tensor([len(path) - 1 for path in paths])
    positions = start + depths

    gather = None
    if len(branches) > 1:
        gather = torch.arange(shared, shared + tail).repeat(len(branches), 1)
        for index, branch in enumerate(branches):
            gather[index, start - shared : start - shared + len(branch)] = start + torch.tensor(branch)
        gather.clamp_(max=start + len(parents) - 1)
    column = torch.arange(shared, shared + tail)
    hidden = column[None, None, :] > positions[rows][:, :, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    return BlockLayout(
        start,
        shared,
        shared + tail,
        len(parents),
        rows.to(device),
        place.to(device),
        None if gather is None else gather.to(device),
        mask.to(device),
        positions.to(device),
    )
