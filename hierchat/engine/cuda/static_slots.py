"""Key-value slots at fixed addresses, for CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from hierchat.engine.torch.slots import SlotLayer, Slots


class StaticLayer(SlotLayer):
    """One layer's part of StaticSlots: keys and values [1, kv, slots, d]."""

    slots: StaticSlots

    def __init__(self, slots: StaticSlots, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(slots)
        self.keys, self.values = keys, values
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a segment where `slots.writing` says; returns all slots."""
        assert self.keys is not None
        assert self.values is not None
        self.keys.index_copy_(2, self.slots.writing, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.slots.writing, value_states.to(self.values.dtype))
        return self.keys, self.values


class StaticSlots(Slots):
    """All layers' slots in one tensor, zeroed so that unseen ones hold finite numbers."""

    writing: torch.Tensor
    """[rows] slots that the present forward fills."""

    def __init__(self, config: Any, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = config.num_attention_heads
        kv = getattr(config, "num_key_value_heads", None) or heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        shape = (config.num_hidden_layers, 2, 1, kv, capacity, width)
        self.held = torch.zeros(shape, dtype=dtype, device=device)
        self.length, self.capacity = 0, capacity
        Cache.__init__(self, layers=[StaticLayer(self, keys, values) for keys, values in self.held])

    @torch.inference_mode()
    def commit(self, nodes: list[int]) -> None:
        begin, end = self.length, self.length + len(nodes)
        if nodes != list(range(len(nodes))):
            sources = torch.tensor(nodes, device=self.held.device) + begin
            self.held[..., begin:end, :] = self.held[..., sources, :]
        self.length = end
