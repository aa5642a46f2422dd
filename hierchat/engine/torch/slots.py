"""Keep key-value slots of one conversation: written in place, rolled back by forgetting, reused by the next turn."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotLayer(CacheLayerMixin):
    """Hold one layer's slots: keys and values [1, kv, slots, d], zeroed so that unseen slots hold finite numbers."""

    is_sliding = False
    is_croppable = True
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, slots: TorchSlots) -> None:
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        _, kv, _, width = key_states.shape
        shape = (1, kv, self.slots.capacity, width)
        self.keys = key_states.new_zeros(shape)
        self.values = value_states.new_zeros((*shape[:3], value_states.shape[-1]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the segment after the committed slots; returns all slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        begin, end = self.slots.length, self.slots.length + key_states.shape[2]
        self.keys[:, :, begin:end] = key_states
        self.values[:, :, begin:end] = value_states
        return self.keys, self.values

    def grow(self, capacity: int) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((1, old.shape[1], capacity, old.shape[3]))
            new[:, :, : old.shape[2]] = old
            setattr(self, name, new)

    def keep(self, sources: torch.Tensor, begin: int) -> None:
        """Move `sources` slots to begin, begin + 1, ... (the accepted branch of a tree)."""
        end = begin + len(sources)
        self.keys[:, :, begin:end] = self.keys[:, :, sources]
        self.values[:, :, begin:end] = self.values[:, :, sources]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.slots.length

    def get_max_length(self) -> int:
        return self.slots.capacity


class TorchSlots(Cache):
    """Hold all layers' slots. `length` are committed; a forward writes after them, and views multiples of `bucket`."""

    spoilt = False
    """Whether the last forward wrote a value that is not finite."""

    def __init__(self, layers: int, capacity: int, bucket: int) -> None:
        self.length = 0
        self.bucket = bucket
        self.capacity = self._rounded(capacity)
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    @torch.inference_mode()
    def reserve(self, needed: int) -> None:
        """Make room for `needed` slots, doubling. What is no number is wiped: a weight of 0 does not take it out."""
        if self.spoilt:
            self.wipe()
        if needed > self.capacity:
            capacity = self._rounded(max(needed, 2 * self.capacity))
            for layer in self._keyed():
                layer.grow(capacity)
            self.capacity = capacity

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of committed slots, for any layer: there may be none with keys."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0

    @torch.inference_mode()
    def commit(self, nodes: list[int]) -> None:
        """Keep these nodes of the last segment, in this order."""
        if nodes != list(range(len(nodes))):
            sources = torch.tensor(nodes) + self.length
            for layer in self._keyed():
                layer.keep(sources, self.length)
        self.length += len(nodes)

    @torch.inference_mode()
    def wipe(self) -> None:
        """Overwrite all slots that are not committed."""
        for layer in self._keyed():
            layer.keys[:, :, self.length :] = layer.values[:, :, self.length :] = 0

    def rollback(self, length: int) -> None:
        self.length = length

    def _keyed(self) -> list[SlotLayer]:
        """List the layers that have keys; others use those of another layer."""
        return [layer for layer in self.layers if isinstance(layer, SlotLayer) and layer.is_initialized]

    def _rounded(self, slots: int) -> int:
        return (-(-slots // self.bucket) + 1) * self.bucket
