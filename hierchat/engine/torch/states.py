"""Run layers that keep a running state with transformers' modules: short convolutions, Gated DeltaNet, Mamba 2.
A state has no length to cut. So each node of a segment has a separate state, and a commit selects one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from hierchat.engine.torch.slots import TorchSlots

STATES = {"conv", "linear_attention"}
"""transformers' names of layers that keep a running state and nothing else."""
KEPT = 6
"""Marks of a sequence: two for each of its last prompts."""


class LayerState(NamedTuple):
    """State that one layer keeps of a text. Never changed."""

    inputs: torch.Tensor | None = None
    """[size - 1, channels]: the last inputs of its convolution; None before the first."""
    running: torch.Tensor | None = None
    """[1, heads, ...]; None before the first token, and if there is only a convolution."""


@dataclass(frozen=True, slots=True)
class StateMark:
    """States of all layers after the first `length` tokens of a text."""

    length: int
    states: tuple[LayerState, ...]


class StateLayer(LinearAttentionCacheLayerMixin):
    """Holds one layer's states: after the committed tokens, and after each node of the last segment."""

    def __init__(self, slots: TorchStateSlots) -> None:
        super().__init__()
        self.slots = slots
        self.state = LayerState()
        self._windows: torch.Tensor | None = None  # [rows, size, channels]
        self._running: dict[int, torch.Tensor] = {}
        # A module asks for its convolution over windows, not for its own update of a single state
        self.record_past = True
        self.has_previous_state = {0: True}
        self.conv_states = self.recurrent_states = {0: self}

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: shapes are those of the first state."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, *, conv_kernel_size: int, **kwargs: Any
    ) -> torch.Tensor:
        """Return [rows, channels, size], each row's input and those before it in its text, from [rows, channels, 1]."""
        self._running = {}
        inputs = conv_states[:, :, 0]
        before = self.state.inputs
        if before is None:
            before = inputs.new_zeros(conv_kernel_size - 1, inputs.shape[1])
        rows, places = torch.cat((before, inputs)), self.slots.windows(conv_kernel_size)
        # rows[places], which torch copies number by number
        self._windows = rows.index_select(0, places.view(-1)).view(*places.shape, -1)
        return self._windows.transpose(1, 2)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Return the states as they are: the rules below have put them here already."""
        return recurrent_states

    def nodes(self) -> Iterator[tuple[int, torch.Tensor | None]]:
        """Yield each node of the segment, with the running state before it; `put` stores the one after it."""
        for node, parent in enumerate(self.slots.parents):
            yield node, self.state.running if parent < 0 else self._running[parent]

    def put(self, node: int, running: torch.Tensor) -> None:
        self._running[node] = running
        if self.slots.reading:  # a chain, of which only the end will be committed
            self._running.pop(node - 1, None)

    def commit(self, node: int) -> None:
        inputs = None if self._windows is None else self._windows[node, 1:].clone()
        running = self._running.get(node)
        self.state = LayerState(inputs, None if running is None else running.clone())
        self._windows, self._running = None, {}


class TorchStateSlots(TorchSlots):
    """Slots of a text with running states, which are kept at marks: beginning and end of the last piece of a prompt."""

    def __init__(self, keeps: Sequence[bool], capacity: int, bucket: int) -> None:
        """Take `keeps`: by layer, whether it keeps a state."""
        super().__init__(len(keeps), capacity, bucket)
        self.parents: Sequence[int] = ()
        self.reading = False
        self._states = [StateLayer(self) for kept in keeps if kept]
        self._follows: Sequence[int] = ()
        self._windows: dict[int, torch.Tensor] = {}
        self._marks: list[StateMark] = []
        for at, layer in zip(np.flatnonzero(keeps), self._states, strict=True):
            self.layers[at] = layer

    def begin(self, parents: Sequence[int], follows: Sequence[int], *, reading: bool) -> None:
        if self.reading and reading and self._marks:
            self._marks.pop()
        if self.reading or reading:
            others = [mark for mark in self._marks if mark.length != self.length]
            self._marks = [*others, self._mark()][-KEPT:]
        self.parents, self.reading = parents, reading
        self._follows, self._windows = follows, {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of committed slots, for any layer: there may be none with keys."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def windows(self, size: int) -> torch.Tensor:
        """Return each row's window [rows, size]: places in the last size - 1 committed inputs and then the rows'."""
        if size not in self._windows:
            found: list[list[int]] = []
            for row, parent in enumerate(self._follows):
                before = found[parent] if parent >= 0 else list(range(size - 1))
                found.append([*before, size - 1 + row][-size:])
            self._windows[size] = torch.tensor(found)
        return self._windows[size]

    def commit(self, nodes: list[int]) -> None:
        super().commit(nodes)
        if nodes:
            for layer in self._states:
                layer.commit(nodes[-1])

    def rollback(self, length: int) -> None:
        """Forget all after the last mark before `length`: the caller reads again from there."""
        if length >= self.length:
            return
        self._marks = [mark for mark in self._marks if mark.length <= length]
        empty = StateMark(0, (LayerState(),) * len(self._states))
        last = max(self._marks, key=lambda mark: mark.length, default=empty)
        for layer, state in zip(self._states, last.states, strict=True):
            layer.state = state
        self.length, self.reading = last.length, False

    def _mark(self) -> StateMark:
        return StateMark(self.length, tuple(layer.state for layer in self._states))


def keeps_states(config: Any) -> list[bool]:
    """Tell of each layer whether it keeps a running state."""
    kinds = getattr(config, "layer_types", None) or []
    return [kind in STATES for kind in kinds]


def by_node(model: torch.nn.Module) -> None:
    """Make the stateful layers of a transformers model compute a segment over StateSlots node by node, by the
    module's own rule for a single token, with projections over all rows at once. So a node gets the same bits in any
    segment."""
    for module in model.modules():
        if any(isinstance(child, torch.nn.Conv1d) for child in module.children()):
            module.register_forward_pre_hook(_row_by_row, with_kwargs=True)
            module.register_forward_hook(_together, with_kwargs=True)
            home = sys.modules[type(module).__module__]
            for name, ours in _RULES.items():
                rule = getattr(home, name, None)
                if rule and not isinstance(rule, partial):
                    setattr(home, name, partial(ours, rule))


def _over_states(kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(kwargs.get(name), TorchStateSlots) for name in ("cache_params", "past_key_values"))


def _row_by_row(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Turn [1, rows, hidden] into so many texts of one token, [rows, 1, hidden]."""
    if not _over_states(kwargs):
        return None
    if args:
        return (args[0].transpose(0, 1), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": kwargs["hidden_states"].transpose(0, 1)}


def _together(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor
) -> torch.Tensor | None:
    return out.transpose(0, 1) if _over_states(kwargs) else None


def _delta_rule(
    rule: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: Any = None,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace the rule of Gated DeltaNet over StateLayers: tensors [rows, 1, heads, ...]; g is the logarithm of
    fading."""
    kwargs["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
    if not isinstance(initial_state, StateLayer):
        return rule(query, key, value, g=g, beta=beta, initial_state=initial_state, **kwargs)
    out = torch.zeros_like(value)
    for node, state in initial_state.nodes():
        row = slice(node, node + 1)
        out[row], state = rule(
            query[row], key[row], value[row], g=g[row], beta=beta[row], initial_state=state, **kwargs
        )
        initial_state.put(node, state)
    return out, None


def _selective_update(
    rule: Callable[..., Any],
    state: Any,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    *,
    dt_bias: torch.Tensor,
    **kwargs: Any,
) -> torch.Tensor:
    """Replace the update of Mamba 2 over StateLayers: hidden states, dt and its bias [rows, heads, width], a [heads,
    width, size], b and c [rows, groups, size], d [heads, width]; a and dt are the same over the width."""
    kwargs["dt_bias"] = dt_bias
    if not isinstance(state, StateLayer):
        return rule(state, hidden_states, dt, a, b, c, d, **kwargs)
    out = torch.zeros_like(hidden_states)
    for node, before in state.nodes():
        row = slice(node, node + 1)
        running = a.new_zeros((1, *a.shape), dtype=torch.float32) if before is None else before.clone()
        out[row] = rule(running, hidden_states[row], dt[row], a, b[row], c[row], d, **kwargs)
        state.put(node, running)
    return out


_RULES: Mapping[str, Callable[..., Any]] = {
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "mamba2_selective_state_update": _selective_update,
}
"""transformers' functions of states and their convolutions, and what stands in their place."""
