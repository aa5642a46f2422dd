"""Attend over static slots: every row alone, over its own text in order of position.
A Triton kernel on CUDA; elsewhere plain torch, slowly, so that the rest can be tested without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from hierchat.engine.torch.slots import SlotLayer, TorchSlots
from hierchat.models.architectures.model_config import FULL

DEPTH = 128
"""Most nodes of a segment that is a tree. A chain, such as a prompt's, may have more."""


class StaticSegment:
    """Hold the rows of one forward at fixed addresses on the device, filled from the host in one copy.

    `ids`, `positions` and `slots` are [width], `paths` [width, DEPTH], `start` [1], all int64: position p of row r lies
    in slot p below `start` and in slot paths[r, p - start] from there on. Rows behind the segment's nodes are padding:
    they see position 0 alone. Of a chain of more than DEPTH nodes every position lies below `start`. `nodes` [width]
    are places in the segment, `first` [1] is the number of committed slots, `count` [1] that of rows without padding.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.view = 0
        """No position reaches it; fixed in a graph."""
        sizes = [width, width, width, width, width * DEPTH, 1, 1, 1]
        self._device = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        self._host = torch.zeros(sum(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        parts = self._device.split(sizes)
        self.ids, self.positions, self.slots, self.nodes, paths, self.start, self.first, self.count = parts
        self.paths = paths.view(width, DEPTH)
        self._arrays = [part.numpy() for part in self._host.split(sizes)]

    def fill(self, tokens: Sequence[int], parents: Sequence[int], start: int, begin: int = 0) -> None:
        """Write rows for the nodes from `begin` on, behind `start` committed slots. The last copy must have arrived."""
        chain = len(tokens) > DEPTH
        if chain and list(parents) != list(range(-1, len(tokens) - 1)):
            raise ValueError(f"A segment has {len(tokens)} positions; at most {DEPTH} are computed at once.")
        ids, positions, slots, nodes, paths, below, first, count = self._arrays
        for array in (ids, positions, paths):
            array.fill(0)
        nodes[:] = begin + np.arange(self.width)
        slots[:] = start + nodes
        first[0], below[0] = start, start + len(tokens) * chain
        count[0] = there = min(self.width, len(tokens) - begin)
        if chain:
            ids[:there], positions[:there] = tokens[begin : begin + there], slots[:there]
            self._device.copy_(self._host, non_blocking=True)
            return
        table = paths.reshape(self.width, DEPTH)
        before: list[list[int]] = []
        for node, parent in enumerate(parents[: begin + self.width]):
            before.append([*(before[parent] if parent >= 0 else ()), start + node])
            if node >= begin:
                row = node - begin
                ids[row], positions[row] = tokens[node], start + len(before[node]) - 1
                table[row, : len(before[node])] = before[node]
        self._device.copy_(self._host, non_blocking=True)


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
    """Compute attention: ([1, rows, heads, d], None), as transformers asks."""
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
    """Compute in plain torch what triton_attention.attend computes: [rows, heads, d]."""
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


class StaticLayer(SlotLayer):
    """Hold one layer's part of StaticSlots: keys and values [1, kv, slots, d]."""

    slots: StaticSlots

    def __init__(self, slots: StaticSlots, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(slots)
        self.keys, self.values = keys, values
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a segment where `slots.writing` says; returns all slots."""
        self.keys.index_copy_(2, self.slots.writing, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.slots.writing, value_states.to(self.values.dtype))
        return self.keys, self.values


class StaticSlots(TorchSlots):
    """Hold all layers' slots in one tensor for CUDA graphs, zeroed so that unseen ones hold finite numbers."""

    writing: torch.Tensor
    """[rows] slots that the present forward fills."""

    def __init__(self, config: Any, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = config.num_attention_heads
        kv = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
        shape = (kinds.count(FULL), 2, 1, kv, capacity, width)
        self.held = torch.zeros(shape, dtype=dtype, device=device)
        self.length, self.capacity = 0, capacity
        held = iter(self.held)
        layers = [StaticLayer(self, *next(held)) if kind == FULL else SlotLayer(self) for kind in kinds]
        Cache.__init__(self, layers=layers)

    @torch.inference_mode()
    def commit(self, nodes: list[int]) -> None:
        begin, end = self.length, self.length + len(nodes)
        if nodes != list(range(len(nodes))):
            sources = torch.tensor(nodes, device=self.held.device) + begin
            self.held[..., begin:end, :] = self.held[..., sources, :]
        self.length = end
