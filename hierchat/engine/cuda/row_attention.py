"""Compute the attention of each row by itself, over the positions of its own text in order. Its slots never move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from hierchat.engine.cuda.kernels import kernel
from hierchat.engine.torch.slots import SlotLayer, TorchSlots
from hierchat.models.architectures.model_config import FULL, SLIDING

DEPTH = 128
"""Most nodes of a segment that is a tree. A chain, such as a prompt's, may have more."""
PAGE = 64
"""Positions of a page of slots."""
PROMPT = 512
"""Rows of a prompt in one forward, at most: then a product costs more than reading its matrix."""


class SegmentText(NamedTuple):
    """Nodes that one text brings into a forward, `start` committed positions, and the pages of all these."""

    tokens: Sequence[int]
    parents: Sequence[int]
    start: int
    pages: Sequence[int]
    number: int = 0
    """Place of this text among the running states of the runner."""
    reading: bool = False
    """Whether this is a piece of a prompt, a chain that will be committed as a whole."""
    states: NDArray[np.float32] | None = None
    """[nodes, hidden]: the state before each node, for a draft head that reads them."""


class StaticSegment:
    """Hold the rows of one forward over several texts at fixed addresses on the device, filled in one copy.

    All are int64, [width] but for `paths` [width, DEPTH] and `tables` [1 + texts, pages]. Position p of row r is place
    p of its text below starts[r], and place paths[r, p - starts[r]] from there on. Place p of text t is in slot
    p % PAGE of page tables[t, p // PAGE]; `slots` are counted over all pages. Of a chain of more than DEPTH nodes every
    position is below the start. Rows behind the nodes are padding:
    text 0, whose one position is in page 0. What running states need is in row_states.py (Walk). `states` [width,
    hidden] float32 are those that a draft head reads, zeros if a text brings none.
    """

    def __init__(
        self, width: int, device: torch.device, texts: int = 1, pages: int = 1, hidden: int = 0
    ) -> None:
        """Take `width`: rows; `texts` and `pages`: most texts of a forward, and most pages of a text; `hidden`: size of
        the states that are read; 0: none are."""
        self.width = width
        self.view = 0
        """No position reaches it; fixed in a graph."""
        sizes = [*[width] * 9, width * DEPTH, (1 + texts) * pages]
        self._device = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        self._host = torch.zeros(sum(sizes), dtype=torch.long, pin_memory=device.type == "cuda")
        self.ids, self.positions, self.slots, self.starts, self.texts, *walk, paths, tables = (
            self._device.split(sizes)
        )
        self.owners, self.nodes, self.steps, self.reads = walk
        self.paths, self.tables = paths.view(width, DEPTH), tables.view(1 + texts, pages)
        self._arrays = [part.numpy() for part in self._host.split(sizes)]
        self.states = torch.zeros(width, hidden, device=device)
        self._host_states = torch.zeros(width, hidden, pin_memory=device.type == "cuda")

    def fill(self, texts: Sequence[SegmentText], begin: int = 0) -> int:
        """Write the nodes of these texts, one text after the other, from number `begin` on, and return the highest
        position. The last copy must have arrived. Raises ValueError if a tree has more than DEPTH nodes."""
        self._host.zero_()
        self._host_states.zero_()
        self._arrays[8].fill(1)
        first = -begin
        """Row of the present text's node 0."""
        for number, text in enumerate(texts, 1):
            here = slice(max(-first, 0), min(self.width - first, len(text.tokens)))
            if here.start < here.stop:
                self._write(number, text, here, slice(first + here.start, first + here.stop))
            first += len(text.tokens)
        self._device.copy_(self._host, non_blocking=True)
        self.states.copy_(self._host_states, non_blocking=True)
        return int(self._arrays[1].max())

    def _write(self, number: int, text: SegmentText, nodes: slice, rows: slice) -> None:
        """Write these nodes of text `number` to these rows."""
        ids, positions, slots, starts, texts, owners, walked, steps, reads, paths, tables = self._arrays
        count = len(text.tokens)
        chain = list(text.parents) == list(range(-1, count - 1))
        if count > DEPTH and not chain:
            raise ValueError(f"A tree has {count} nodes; at most {DEPTH} are computed at once.")
        pages = np.array(text.pages)
        tables.reshape(self.tables.shape)[number, : len(pages)] = pages
        ids[rows], texts[rows] = text.tokens[nodes], number
        if text.states is not None:
            self._host_states.numpy()[rows] = text.states[nodes]
        starts[rows] = text.start + count * (count > DEPTH)
        places = text.start + np.arange(count)
        slots[rows] = (pages[places // PAGE] * PAGE + places % PAGE)[nodes]
        owners[rows], walked[rows], reads[rows] = text.number, np.arange(count)[nodes], text.reading
        if text.reading:
            steps[rows.start] = rows.stop - rows.start
        own = paths.reshape(self.width, DEPTH)[rows]
        if chain:
            if not text.reading:
                steps[rows] = walked[rows] + 1
            positions[rows] = places[nodes]
            own[:, : min(count, DEPTH)] = places[:DEPTH]
            return
        before: list[list[int]] = []
        for node, parent in enumerate(text.parents[: nodes.stop]):
            before.append([*(before[parent] if parent >= 0 else ()), text.start + node])
        for row, path in enumerate(before[nodes]):
            positions[rows.start + row] = text.start + len(path) - 1
            steps[rows.start + row] = len(path)
            own[row, : len(path)] = path


NAME = "hierchat_rows"


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, d]
    key: torch.Tensor,  # [1, kv, slots, d], all slots
    value: torch.Tensor,  # [1, kv, slots, d]
    attention_mask: torch.Tensor | None,
    scaling: float,
    segment: StaticSegment,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention: ([1, rows, heads, d], None), as transformers asks. `s_aux` [heads]: scores of sinks."""
    places = (segment.positions, segment.starts, segment.paths, segment.texts, segment.tables)
    rule = scaling, sliding_window or 0, softcap or 0.0, s_aux
    attend = kernel("attend", query.device)
    return attend(query[0], key[0], value[0], *places, PAGE, segment.view, *rule)[None], None


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
    """Hold all layers' slots of all texts for CUDA graphs, in `pages` of PAGE slots, zeroed so that unseen ones hold
    finite numbers."""

    writing: torch.Tensor
    """[rows] slots that the present forward fills."""

    def __init__(
        self, shapes: Sequence[tuple[int, int] | None], pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Take `shapes`: what slot_shapes returns."""
        self.length, self.capacity = 0, pages * PAGE  # transformers asks; the segment has the length
        self.held = {
            (kv, width): torch.zeros(
                shapes.count((kv, width)), 2, 1, kv, self.capacity, width, dtype=dtype, device=device
            )
            for kv, width in dict.fromkeys(filter(None, shapes))
        }
        """Keys and values of the layers of a shape, [layers, 2, 1, kv, slots, d]."""
        held = {shape: iter(tensor) for shape, tensor in self.held.items()}
        layers = [StaticLayer(self, *next(held[one])) if one else SlotLayer(self) for one in shapes]
        Cache.__init__(self, layers=layers)


def slot_shapes(model: Any) -> list[tuple[int, int] | None]:
    """Return the key-value heads of each layer of a transformers model, and their size; None for a layer that keeps no
    keys, or reads those of another."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
    shapes = list[tuple[int, int] | None]()
    for kind, one in zip(kinds, config.per_layer_config, strict=True):
        heads = one.num_attention_heads
        width = getattr(one, "head_dim", None) or one.hidden_size // heads
        kv = getattr(one, "num_key_value_heads", None) or heads
        shapes.append((kv, width) if kind in (FULL, SLIDING) else None)
    for part in model.modules():
        if getattr(part, "is_kv_shared_layer", False):
            shapes[part.layer_idx] = None
    return shapes
