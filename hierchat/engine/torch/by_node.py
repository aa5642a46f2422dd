"""Has transformers' modules that keep a running state compute a segment node by node.

A segment goes through such a module as if every row were a text of one token. Its projections go over all rows at once.
The state is brought up to date node by node: on a processor by a kernel of ours, else by the module's own rule for a
single token. So a node gets the same bits in any segment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from hierchat.engine.torch.scan import scan
from hierchat.engine.torch.states import StateLayer, StateSlots, Windows

PROCESSOR = "cpu"
"""The kind of device that has a kernel of ours."""


def by_node(model: torch.nn.Module) -> None:
    """Make those layers of a transformers model that keep a state compute a segment over StateSlots node by node.

    transformers' functions that bring a state up to date learn of StateLayer; with any other they do what they did.
    """
    for module in model.modules():
        if any(isinstance(child, torch.nn.Conv1d) for child in module.children()):
            module.register_forward_pre_hook(_row_by_row, with_kwargs=True)
            module.register_forward_hook(_together, with_kwargs=True)
            home = sys.modules[type(module).__module__]
            for name, teach in _RULES.items():
                rule = getattr(home, name, None)
                if rule and rule.__module__ != __name__:
                    setattr(home, name, teach(rule))


def _over_states(kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(kwargs.get(name), StateSlots) for name in ("cache_params", "past_key_values"))


def _row_by_row(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """[1, rows, hidden] as so many texts of one token, [rows, 1, hidden]."""
    if not _over_states(kwargs):
        return None
    if args:
        return (args[0].transpose(0, 1), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": kwargs["hidden_states"].transpose(0, 1)}


def _together(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor
) -> torch.Tensor | None:
    return out.transpose(0, 1) if _over_states(kwargs) else None


def _delta_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Of Gated DeltaNet: tensors [rows, 1, heads, ...]; g is the logarithm of what a state fades by."""

    def taught(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: Any = None,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        kwargs["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
        if not isinstance(initial_state, StateLayer):
            return rule(query, key, value, g=g, beta=beta, initial_state=initial_state, **kwargs)
        if value.device.type == PROCESSOR:
            query, key = query[:, 0].float(), key[:, 0].float()
            if use_qk_l2norm_in_kernel:
                query, key = _normed(query), _normed(key)
            query = query * query.shape[-1] ** -0.5
            fades = g[:, 0].float().exp()
            out = scan(initial_state, query, key, value[:, 0], fades, beta[:, 0], corrects=True)
            return out[:, None].to(value.dtype), None
        out = torch.zeros_like(value)
        for node, state in initial_state.nodes():
            row = slice(node, node + 1)
            out[row], state = rule(
                query[row], key[row], value[row], g=g[row], beta=beta[row], initial_state=state, **kwargs
            )
            initial_state.put(node, state)
        return out, None

    return taught


def _normed(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6)


def _selective_update(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Of Mamba 2: hidden states, dt and its bias [rows, heads, width], a [heads, width, size], b and c [rows, groups,
    size], d [heads, width]; a and dt are the same over the width."""

    def taught(
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
        kwargs["dt_bias"] = dt_bias
        if not isinstance(state, StateLayer):
            return rule(state, hidden_states, dt, a, b, c, d, **kwargs)
        if hidden_states.device.type == PROCESSOR:
            rates = functional.softplus(dt[..., 0] + dt_bias[..., 0].to(dt.dtype)).float()
            fades = (rates * a[:, 0, 0].float()).exp()
            out = scan(state, c, b, hidden_states, fades, rates, corrects=False)
            return (out + hidden_states * d).to(hidden_states.dtype)
        out = torch.zeros_like(hidden_states)
        for node, before in state.nodes():
            row = slice(node, node + 1)
            running = a.new_zeros((1, *a.shape), dtype=torch.float32) if before is None else before.clone()
            out[row] = rule(running, hidden_states[row], dt[row], a, b[row], c[row], d, **kwargs)
            state.put(node, running)
        return out

    return taught


def _convolution(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Of each channel over its last inputs, [rows, channels, size]; weight [channels, size]. torch would compute all
    outputs of a window, and those of what lies before it."""

    def taught(
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not isinstance(hidden_states, Windows):
            return rule(hidden_states, weight, bias, activation=activation, **kwargs)
        windows = hidden_states.as_subclass(torch.Tensor)
        if windows.device.type != PROCESSOR:
            return rule(windows, weight, bias, activation=activation, **kwargs)
        factors = weight.T.contiguous()
        out = windows[:, :, 0] * factors[0]
        for at in range(1, len(factors)):
            out += windows[:, :, at] * factors[at]
        if bias is not None:
            out += bias
        if activation is not None:
            out = ACT2FN[activation](out)
        return out[:, :, None]

    return taught


_RULES = {
    "causal_conv1d_fn": _convolution,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "mamba2_selective_state_update": _selective_update,
}
"""transformers' functions of states and their convolutions, and how each is taught."""
