"""Run layers that keep a running state with transformers' modules: short convolutions, Gated DeltaNet, Mamba 2.

A state is stored after the committed tokens alone. Each row of a segment goes on from there by the tokens of its own
path, one after the other, whatever else is in the forward. A commit repeats the steps of the accepted path and stores
where they end. So a row's bits depend on its text only, and a tree needs no state per node.

One step of a head with state S [key size, value size], key k, query q, value v, fade g and rate b:

    S = exp(g) S,  c = b (v - S' k) for Gated DeltaNet, b v for Mamba 2,  S = S + k c',  out = S' q

Gated DeltaNet: Yang et al., 2024, arXiv 2412.06464. Mamba 2: Dao and Gu, 2024, arXiv 2405.21060."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import torch
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from hierchat.engine.cuda.row_attention import DEPTH, StaticSegment, StaticSlots
from hierchat.engine.torch.slots import TorchSlots

STATES = {"conv", "linear_attention"}
"""transformers' names of layers that keep a running state and nothing else."""
KEPT = 4
"""Marks of a sequence: two for each of its last prompts."""
READ, TREE, COMMIT = range(3)
"""What a walk does: it takes all rows in order, brings what each gives, and stores the state; it takes the path of each
row, and brings what its last step gives; it takes one path, and stores the state."""
UNIT = 1e-6
"""Added to the squared length of queries and keys of Gated DeltaNet before they are divided by it."""


class Steps(NamedTuple):
    """What rows give to the states of one layer, or of all layers: one more axis in front."""

    keys: torch.Tensor
    """[rows, key heads, key size]."""
    values: torch.Tensor
    """[rows, heads, value size]."""
    fades: torch.Tensor
    """[rows, heads] logarithms, float32."""
    rates: torch.Tensor
    """[rows, heads], float32."""

    def of(self, layer: int) -> Steps:
        return Steps(*(one[layer] for one in self))


class Walk(NamedTuple):
    """Which rows are taken: int64, on the device. A row's path is paths[row, :positions[row] - start + 1], less `start`
    each; in READ `count` rows are taken, in COMMIT so many of paths[0]."""

    mode: int
    positions: torch.Tensor
    start: torch.Tensor
    paths: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True, slots=True)
class StateMark:
    """States of all layers after the first `length` tokens of a text; None before the first."""

    length: int
    running: torch.Tensor | None
    inputs: torch.Tensor | None


class RunningStates:
    """Hold the states of all layers after a text, at fixed addresses, and what the last segment gives to them."""

    def __init__(self, layers: int) -> None:
        self.layers = [StateLayer(self, number) for number in range(layers)]
        self.walk: Walk
        self.nodes: torch.Tensor
        """[rows] of the present forward: each row's node, int64."""
        self.inputs: torch.Tensor | None = None
        """[layers, size - 1 + DEPTH, channels]: the last inputs of the convolutions, and those of the segment's nodes."""
        self._inputs_after: torch.Tensor | None = None
        self.running: torch.Tensor | None = None
        """[layers, heads, key size, value size], float32; None if there are convolutions alone."""
        self._running_after: torch.Tensor | None = None
        self._steps: Steps | None = None
        """Of the segment's nodes."""
        self.is_delta = True

    def begin(self, segment: StaticSegment, *, reading: bool) -> None:
        """Prepare for a forward. `reading`: of a chain, which will be committed as a whole."""
        mode = READ if reading else TREE
        self.walk = Walk(mode, segment.positions, segment.first, segment.paths, segment.count)
        self.nodes = segment.nodes

    def convolve(
        self, layer: int, given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the convolution of each row's input [rows, channels] and those before it in its text."""
        before = weight.shape[-1] - 1
        if self.inputs is None:
            sizes = (len(self.layers), before + DEPTH, given.shape[1])
            self.inputs = given.new_zeros(sizes)
            self._inputs_after = given.new_zeros(sizes[0], before, sizes[2])
        inputs, after = self.inputs[layer], cast(torch.Tensor, self._inputs_after)[layer]
        if self.walk.mode == READ:
            inputs = torch.cat((inputs[:before], given))
            last = self.walk.count + torch.arange(before, device=given.device)
            after.copy_(inputs.index_select(0, last))
        else:
            inputs.index_copy_(0, self.nodes + before, given)
        return _on(given.device, "convolve", convolve_plainly)(inputs, self.walk, weight, bias, len(given))

    def step(
        self, layer: int, steps: Steps, query: torch.Tensor, skip: torch.Tensor | None, *, delta: bool
    ) -> torch.Tensor:
        """Return what rows read of their states, [rows, heads, value size]. `query`: as keys; `skip` [heads]: of its value
        that a row adds."""
        if self.running is None:
            count = len(self.layers)
            self.is_delta = delta
            (_, heads, width), size = steps.values.shape, query.shape[-1]
            self.running = query.new_zeros(count, heads, size, width, dtype=torch.float32)
            self._running_after = torch.zeros_like(self.running)
            self._steps = Steps(*(one.new_zeros(count, DEPTH, *one.shape[1:]) for one in steps))
        given, kept = Steps(*(one.contiguous() for one in steps)), cast(Steps, self._steps).of(layer)
        if self.walk.mode == TREE:
            for one, new in zip(kept, given, strict=True):
                one.index_copy_(0, self.nodes, new)
            given = kept
        out = steps.values.new_zeros(steps.values.shape)  # padding takes no step
        here, after = (cast(torch.Tensor, one)[layer, None] for one in (self.running, self._running_after))
        self._walk(self.walk, here, after, Steps(*(one[None] for one in given)), query.contiguous(), skip, out)
        return out

    def commit(self, nodes: Sequence[int]) -> None:
        """Store the states behind a path of nodes of the last segment."""
        if self.inputs is None:
            return
        before = cast(torch.Tensor, self._inputs_after).shape[1]
        device = self.inputs.device
        if self.walk.mode == READ:
            self.inputs[:, :before] = self._inputs_after
            if self.running is not None:
                self.running.copy_(cast(torch.Tensor, self._running_after))
            return
        last = [*range(before), *(before + node for node in nodes)][-before:] if before else []
        told = torch.tensor([len(nodes), 0, *last, *nodes]).to(device)
        count, zero, places, path = told.split([1, 1, before, len(nodes)])
        self.inputs[:, :before] = self.inputs.index_select(1, places)
        if self.running is not None:
            walk = Walk(COMMIT, zero, zero, path[None], count)
            self._walk(walk, self.running, self.running, cast(Steps, self._steps))

    def _walk(
        self,
        walk: Walk,
        running: torch.Tensor,
        after: torch.Tensor,
        steps: Steps,
        query: torch.Tensor | None = None,
        skip: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> None:
        rule = _on(running.device, "walk", walk_plainly)
        rule(walk, running, after, steps, query, skip, out, delta=self.is_delta)

    def mark(self, length: int) -> StateMark:
        """Copy the states after a text of `length` tokens."""
        inputs = None if self.inputs is None else self.inputs[:, : self.inputs.shape[1] - DEPTH].clone()
        return StateMark(length, None if self.running is None else self.running.clone(), inputs)

    def restore(self, mark: StateMark | None) -> None:
        """Go back to a mark; None: to the beginning."""
        inputs = None if self.inputs is None else self.inputs[:, : self.inputs.shape[1] - DEPTH]
        for held, kept in ((self.running, mark and mark.running), (inputs, mark and mark.inputs)):
            if held is not None:
                held.zero_() if kept is None else held.copy_(kept)

    def wipe(self) -> None:
        """Overwrite all but the states of committed text."""
        rest = None if self.inputs is None else self.inputs[:, self.inputs.shape[1] - DEPTH :]
        for one in (rest, self._inputs_after, self._running_after, *(self._steps or ())):
            if one is not None:
                one.zero_()


def _on(device: torch.device, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Triton kernel of this name on CUDA, elsewhere what computes the same plainly."""
    if device.type != "cuda" or find_spec("triton") is None:
        return plain
    from hierchat.engine.cuda import triton_states

    return cast(Callable[..., Any], getattr(triton_states, name))


def path_of(walk: Walk, row: int) -> list[int]:
    """Return the nodes that a row's walk takes, oldest first."""
    if walk.mode == READ:
        return list(range(int(walk.count)))
    length = int(walk.count) if walk.mode == COMMIT else int(walk.positions[row] - walk.start) + 1
    return cast(list[int], (walk.paths[row, : max(length, 0)] - walk.start).tolist())


def convolve_plainly(
    inputs: torch.Tensor, walk: Walk, weight: torch.Tensor, bias: torch.Tensor | None, rows: int
) -> torch.Tensor:
    """Compute in plain torch what triton_states.convolve computes: [rows, channels], of `inputs` [size - 1 + nodes,
    channels] and weight [channels, size]."""
    size = weight.shape[-1]
    factors = weight.float().T
    out = []
    for row in range(rows):
        path = list(range(row + 1)) if walk.mode == READ else path_of(walk, row)
        places = [*range(size - 1), *(size - 1 + node for node in path)][-size:]
        total = (inputs[places].float() * factors[-len(places) :]).sum(0)
        out.append(total if bias is None else total + bias.float())
    return torch.stack(out).to(inputs.dtype)


def walk_plainly(
    walk: Walk,
    running: torch.Tensor,  # [layers, heads, key size, value size]
    after: torch.Tensor,  # as running
    steps: Steps,  # of all these layers
    query: torch.Tensor | None,  # [rows, key heads, key size], of one layer; None in COMMIT, and
    skip: torch.Tensor | None,  # [heads]
    out: torch.Tensor | None,  # [rows, heads, value size]
    *,
    delta: bool,
) -> None:
    """Compute in plain torch what triton_states.walk computes."""
    for layer, state in enumerate(running):
        own, found = steps.of(layer), dict[int, torch.Tensor]()
        heads = state.shape[0]

        def spread(some: torch.Tensor, heads: int = heads) -> torch.Tensor:
            some = some.float()
            if delta:
                some = some * torch.rsqrt(some.square().sum(-1, keepdim=True) + UNIT)
            return some.repeat_interleave(heads // len(some), 0)[..., None]

        def behind(node: int, before: torch.Tensor, own: Steps = own) -> torch.Tensor:
            key, value = spread(own.keys[node]), own.values[node].float()
            before = before * own.fades[node].exp()[:, None, None]
            if delta:
                value = value - (before * key).sum(1)
            return before + key * (own.rates[node][:, None] * value)[:, None]

        def bring(row: int, node: int, state: torch.Tensor, own: Steps = own) -> None:
            assert query is not None
            assert out is not None
            scale = query.shape[-1] ** -0.5 if delta else 1.0
            read = (state * (spread(query[row]) * scale)).sum(1)
            out[row] = read if skip is None else read + skip.float()[:, None] * own.values[node].float()

        for row in range(len(walk.positions) if walk.mode == TREE else 1):
            now, path = state, path_of(walk, row)
            for node in path:
                if node not in found:
                    found[node] = behind(node, now)
                now = found[node]
                if walk.mode == READ:
                    bring(node, node, now)
            if walk.mode == TREE and path:
                bring(row, path[-1], now)
        if walk.mode != TREE:
            after[layer] = now


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


class StateSlots(TorchSlots):
    """Slots of a text with running states, which are kept at marks: beginning and end of the last piece of a prompt."""

    states: RunningStates
    reading = False
    _marks: tuple[StateMark, ...] = ()

    def begin_segment(self, segment: StaticSegment, *, reading: bool) -> None:
        """Prepare for a forward over rows of a segment. `reading`: all will be committed."""
        if self.reading and reading:
            self._marks = self._marks[:-1]
        if self.reading or reading:
            others = [mark for mark in self._marks if mark.length != self.length]
            self._marks = (*others, self.states.mark(self.length))[-KEPT:]
        self.reading = reading
        self.states.begin(segment, reading=reading)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of committed slots, for any layer: there may be none with keys."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0

    @torch.inference_mode()
    def commit(self, nodes: list[int]) -> None:
        super().commit(nodes)
        if nodes:
            self.states.commit(nodes)

    @torch.inference_mode()
    def rollback(self, length: int) -> None:
        """Forget all after the last mark before `length`: the caller reads again from there."""
        if length >= self.length:
            return
        self._marks = tuple(mark for mark in self._marks if mark.length <= length)
        last = max(self._marks, key=lambda mark: mark.length, default=None)
        self.states.restore(last)
        self.length, self.reading = last.length if last else 0, False

    @torch.inference_mode()
    def wipe(self) -> None:
        super().wipe()
        self.states.wipe()


class TorchStateSlots(StateSlots):
    """StateSlots that grow with their text."""

    def __init__(self, keeps: Sequence[bool], capacity: int, bucket: int) -> None:
        """Take `keeps`: by layer, whether it keeps a state."""
        super().__init__(len(keeps), capacity, bucket)
        self.states = _put_into(self, keeps)

    def begin(self, parents: Sequence[int], rows: int, device: torch.device, *, reading: bool) -> None:
        segment = StaticSegment(rows, device)
        segment.fill([0] * len(parents), parents, self.length)
        self.begin_segment(segment, reading=reading)


class StaticStateSlots(StateSlots, StaticSlots):
    """StateSlots at fixed addresses, for CUDA graphs."""

    def __init__(self, config: Any, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        StaticSlots.__init__(self, config, capacity, dtype, device)
        self.states = _put_into(self, keeps_states(config))


def _put_into(slots: TorchSlots, keeps: Sequence[bool]) -> RunningStates:
    states = RunningStates(sum(keeps))
    rest = iter(states.layers)
    for layer, keeps_one in enumerate(keeps):
        if keeps_one:
            slots.layers[layer] = next(rest)
    return states


def keeps_states(config: Any) -> list[bool]:
    """Tell of each layer whether it keeps a running state."""
    kinds = getattr(config, "layer_types", None) or []
    return [kind in STATES for kind in kinds]


def by_path(model: torch.nn.Module) -> None:
    """Make the stateful layers of a transformers model compute a segment over StateSlots path by path, with
    projections over all rows at once. Made so once, it stays so."""
    for module in model.modules():
        made_so = _row_by_row in module._forward_pre_hooks.values()
        if not made_so and any(isinstance(child, torch.nn.Conv1d) for child in module.children()):
            module.register_forward_pre_hook(_row_by_row, with_kwargs=True)
            module.register_forward_hook(_together, with_kwargs=True)
            home = sys.modules[type(module).__module__]
            for name, ours in _RULES.items():
                rule = getattr(home, name, None)
                if rule and not isinstance(rule, partial):
                    setattr(home, name, partial(ours, rule))


def _over_states(kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(kwargs.get(name), StateSlots) for name in ("cache_params", "past_key_values"))


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
