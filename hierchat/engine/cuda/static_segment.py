"""A segment at fixed addresses: what a CUDA graph reads in place of arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

DEPTH = 128
"""Most nodes of a segment."""


class StaticSegment:
    """The rows of one forward on the device, filled from the host in one copy.

    `ids`, `positions` and `slots` are [width], `paths` [width, DEPTH], `start` [1], all int64: position p of row r lies
    in slot p below `start` and in slot paths[r, p - start] from there on. Rows behind the segment's nodes are padding:
    they see position 0 alone.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.view = 0
        """No position reaches it; fixed in a graph."""
        sizes = [width, width, width, width * DEPTH, 1]
        self._device = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        self._host = torch.zeros(sum(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        self.ids, self.positions, self.slots, paths, self.start = self._device.split(sizes)
        self.paths = paths.view(width, DEPTH)
        self._arrays = [part.numpy() for part in self._host.split(sizes)]

    def fill(self, tokens: Sequence[int], parents: Sequence[int], start: int, begin: int = 0) -> None:
        """Rows for the nodes from `begin` on, behind `start` committed slots. The last copy must have arrived."""
        if len(tokens) > DEPTH:
            raise ValueError(f"A segment has {len(tokens)} positions; at most {DEPTH} are computed at once.")
        ids, positions, slots, paths, first = self._arrays
        for array in (ids, positions, paths):
            array.fill(0)
        slots[:] = start + begin + np.arange(self.width)
        first[0] = start
        table = paths.reshape(self.width, DEPTH)
        before: list[list[int]] = []
        for node, parent in enumerate(parents[: begin + self.width]):
            if not -1 <= parent < node:
                raise ValueError(f"node {node} follows {parent}: parents must come first")
            before.append([*(before[parent] if parent >= 0 else ()), start + node])
            if node >= begin:
                row = node - begin
                ids[row], positions[row] = tokens[node], start + len(before[node]) - 1
                table[row, : len(before[node])] = before[node]
        self._device.copy_(self._host, non_blocking=True)
