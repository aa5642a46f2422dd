"""Put layers that keep a running state (running_states.py) into transformers' caches and modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from hierchat.engine.cuda.row_states import NODES, Steps
from hierchat.engine.torch.running_states import RunningStates
from hierchat.engine.torch.slots import TorchSlots

STATES = {"conv", "linear_attention"}
"""transformers' names of layers that keep a running state and nothing else."""


class StateLayer(LinearAttentionCacheLayerMixin):
    """Stands for one layer's state in transformers' caches, and is what its modules take for states."""

    def __init__(self, states: RunningStates, number: int) -> None:
        super().__init__()
        self.states, self.number = states, number
        # A module asks for its convolution over several inputs, not for its own update of a single state
        self.record_past = True
        self.has_previous_state = {0: True}
        self.conv_states = self.recurrent_states = {0: self}

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: shapes are those of the first forward."""

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """Return the rows' own inputs [rows, channels, 1], by which `_convolution` finds this layer."""
        own = conv_states.clone(memory_format=torch.contiguous_format)
        own.state_layer = self  # type: ignore[attr-defined]
        return own

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Return the states as they are: the rules below have kept what they need."""
        return recurrent_states


def put_into(slots: TorchSlots, keeps: Sequence[bool], texts: int) -> RunningStates:
    """Put the states of several texts in place of the layers of transformers' cache that keep them."""
    states = RunningStates(sum(keeps), texts)
    places = [layer for layer, keeps_one in enumerate(keeps) if keeps_one]
    for number, layer in enumerate(places):
        slots.layers[layer] = StateLayer(states, number)
    return states


def keeps_states(config: Any) -> list[bool]:
    """Tell of each layer whether it keeps a running state."""
    kinds = getattr(config, "layer_types", None) or []
    return [kind in STATES for kind in kinds]


def state_bytes(model: torch.nn.Module) -> int:
    """Return the bytes that RunningStates take for one text."""
    total = 0
    for module, convolution in _stateful(model):
        sizes = ("num_v_heads", "head_k_dim", "head_v_dim"), ("num_heads", "head_dim", "ssm_state_size")
        cells = max(prod(getattr(module, name, 0) for name in names) for names in sizes)
        total += 2 * 4 * cells + 2 * NODES * convolution.out_channels * convolution.weight.itemsize
    return total


def _stateful(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, torch.nn.Conv1d]]:
    for module in model.modules():
        for child in module.children():
            if isinstance(child, torch.nn.Conv1d):
                yield module, child


def by_path(model: torch.nn.Module) -> None:
    """Make the stateful layers of a transformers model compute a segment over RunningStates path by path, with
    projections over all rows at once. Made so once, it stays so."""
    for module, _ in _stateful(model):
        if _row_by_row not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_row_by_row, with_kwargs=True)
            module.register_forward_hook(_together, with_kwargs=True)
            home = sys.modules[type(module).__module__]
            for name, ours in _RULES.items():
                rule = getattr(home, name, None)
                if rule and not isinstance(rule, partial):
                    setattr(home, name, partial(ours, rule))


def _over_states(kwargs: Mapping[str, Any]) -> bool:
    caches = (kwargs.get(name) for name in ("cache_params", "past_key_values"))
    return any(isinstance(layer, StateLayer) for cache in caches for layer in getattr(cache, "layers", ()))


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


def _convolution(
    rule: Callable[..., Any],
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> Any:
    """Replace a convolution over StateLayers: hidden states [rows, channels, 1], weight [channels, size]."""
    layer: StateLayer | None = getattr(hidden_states, "state_layer", None)
    if layer is None:
        return rule(hidden_states, weight, bias, activation=activation, **kwargs)
    out = layer.states.convolve(layer.number, hidden_states[:, :, 0], weight, bias)[:, :, None]
    return out if activation is None else ACT2FN[activation](out)


def _delta_rule(
    rule: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replace the rule of Gated DeltaNet over StateLayers: tensors [rows, 1, heads, ...]; g is the logarithm of
    fading."""
    if not isinstance(initial_state, StateLayer):
        return rule(query, key, value, g=g, beta=beta, initial_state=initial_state, **kwargs)
    steps = Steps(key[:, 0], value[:, 0], g[:, 0].float(), beta[:, 0].float())
    found = initial_state.states.step(initial_state.number, steps, query[:, 0], None, delta=True)
    return found[:, None], None


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
    width, size], b and c [rows, groups, size], d [heads, width]; a, d and dt are the same over the width."""
    if not isinstance(state, StateLayer):
        return rule(state, hidden_states, dt, a, b, c, d, dt_bias=dt_bias, **kwargs)
    rates = functional.softplus(dt[..., 0] + dt_bias[..., 0].to(dt.dtype)).float()
    steps = Steps(b, hidden_states, rates * a[:, 0, 0].float(), rates)
    return state.states.step(state.number, steps, c, d[:, 0].float().contiguous(), delta=False)


_RULES: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolution,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "mamba2_selective_state_update": _selective_update,
}
"""transformers' functions of states and their convolutions, and what stands in their place."""
