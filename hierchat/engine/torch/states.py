"""Run layers that keep a running state beside those with keys and values: short convolutions, Gated DeltaNet, Mamba 2.

A state cannot be taken back by a length. So each node of a segment has its own, made from that of the node that it
follows, and what is committed is the state behind a node."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from hierchat.engine.cpu.llvm import kernel
from hierchat.engine.cpu.phases import COUNTER, NO_CYCLES, Run, tasks, wait
from hierchat.engine.torch.slots import TorchSlots

STATES = {"conv", "linear_attention"}
"""transformers' names of layers that keep a running state and nothing else."""
KEPT = 6
"""Marks of a sequence: two for each of its last prompts."""
RECENT = 16
"""Ends of steps that are kept beside them where a text is taken back within its last steps, as a draft model's is."""


Share: TypeAlias = Callable[[Callable[[int], Any]], None]
"""Has threads do a job of many tasks; each is told its number."""


def alone(job: Callable[[int], Any]) -> None:
    job(0)


class Windows(torch.Tensor):
    """Inputs of a convolution of which only the last output of each row is wanted."""


class LayerState(NamedTuple):
    """State that one layer keeps of a text. Never changed."""

    inputs: torch.Tensor | None = None
    """[size - 1, channels]: the last inputs of its convolution; None before the first."""
    running: torch.Tensor | None = None
    """[1, heads, ...]; None before the first token, and where there is a convolution alone."""


@dataclass(frozen=True, slots=True)
class StateMark:
    """States of all layers behind the first `length` tokens of a text."""

    length: int
    states: tuple[LayerState, ...]


class StateLayer(LinearAttentionCacheLayerMixin):
    """Hold one layer's states: behind what is committed, and behind each node of the last segment."""

    def __init__(self, slots: StateSlots) -> None:
        super().__init__()
        self.slots = slots
        self.state = LayerState()
        self._windows: torch.Tensor | None = None  # [rows, size, channels]
        self._running: dict[int, torch.Tensor] = {}
        self._behind: Callable[[int], torch.Tensor] | None = None
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
        self._running, self._behind = {}, None
        inputs = conv_states[:, :, 0]
        before = self.state.inputs
        if before is None:
            before = inputs.new_zeros(conv_kernel_size - 1, inputs.shape[1])
        rows, places = torch.cat((before, inputs)), self.slots.windows(conv_kernel_size)
        # rows[places], which torch copies number by number
        self._windows = rows.index_select(0, places.view(-1)).view(*places.shape, -1)
        return self._windows.transpose(1, 2).as_subclass(Windows)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Return the states as they are: the rules below have put them here already."""
        return recurrent_states

    def nodes(self) -> Iterator[tuple[int, torch.Tensor | None]]:
        """Yield each node of the segment, with the running state of what it follows; `put` brings the one behind it."""
        for node, parent in enumerate(self.slots.parents):
            yield node, self.state.running if parent < 0 else self._running[parent]

    def put(self, node: int, running: torch.Tensor) -> None:
        self._running[node] = running
        if self.slots.reading:  # a chain, of which only the end will be committed
            self._running.pop(node - 1, None)

    def follow(self, behind: Callable[[int], torch.Tensor]) -> None:
        """Set, in place of `put`, what makes the running state behind a node, once it is known which is committed."""
        self._behind = behind

    def commit(self, node: int) -> None:
        inputs = None if self._windows is None else self._windows[node, 1:].clone()
        if self._behind:
            self.state = LayerState(inputs, self._behind(node))
        else:
            running = self._running.get(node)
            self.state = LayerState(inputs, None if running is None else running.clone())
        self._windows, self._running, self._behind = None, {}, None


class StateSlots(TorchSlots):
    """Hold the slots of a text of which some layers keep states. States stand at marks: the beginning of the last piece
    that was read of a prompt, and its end. Taking a text back goes to the last mark before."""

    def __init__(self, keeps: Sequence[bool], capacity: int, bucket: int, share: Share = alone) -> None:
        """Take `keeps`: by layer, whether it keeps a state; `share`: how its heads are shared out on a processor."""
        super().__init__(len(keeps), capacity, bucket)
        self.share = share
        self.parents: Sequence[int] = ()
        self.reading = False
        self._states = [StateLayer(self) for kept in keeps if kept]
        self._follows: Sequence[int] = ()
        self._windows: dict[int, torch.Tensor] = {}
        self._marks: list[StateMark] = []
        self._recent: deque[StateMark] = deque(maxlen=0)
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
        """Return the number of committed slots, whichever layer is asked: there may be none with keys."""
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
            if self._recent.maxlen:
                self._recent.append(self._mark())

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` positions, and those behind the last mark before, too: who takes back reads
        them again."""
        if length >= self.length:
            return
        self._marks = [mark for mark in self._marks if mark.length <= length]
        recent = [mark for mark in self._recent if mark.length <= length]
        empty = StateMark(0, (LayerState(),) * len(self._states))
        last = max((*self._marks, *recent), key=lambda mark: mark.length, default=empty)
        self._recent = deque(recent, RECENT if 0 < last.length < length else self._recent.maxlen)
        for layer, state in zip(self._states, last.states, strict=True):
            layer.state = state
        self.length, self.reading = last.length, False

    def _mark(self) -> StateMark:
        return StateMark(self.length, tuple(layer.state for layer in self._states))


def keeps_states(config: Any) -> list[bool]:
    """Tell of each layer whether it keeps a running state."""
    kinds = getattr(config, "layer_types", None) or []
    return [kind in STATES for kind in kinds]


# Running states along the nodes of a tree, on a processor: Gated DeltaNet and Mamba 2 are one recurrence. A
# head's state is a matrix [size, width]. A node lets it fade, adds key times change, and reads it by its
# query. The change is the node's value, in DeltaNet less what the state has for that key already. Sums go
# over `size` in order, so a node's bits are the same in any tree. torch would take ten passes over a state,
# and wait for its threads in each. States of one head stay in the cache, and are forgotten. Of a tree what
# is kept is each node's change: the state behind what is committed is made once more from these.

Floats = NDArray[np.float32]


def scan(
    layer: StateLayer,
    queries: torch.Tensor,  # [rows, groups, size]: heads in order share those of a group
    keys: torch.Tensor,  # [rows, groups, size]
    values: torch.Tensor,  # [rows, heads, width]
    fades: torch.Tensor,  # [rows, heads]: factors
    rates: torch.Tensor,  # [rows, heads]: of change
    *,
    corrects: bool,
) -> torch.Tensor:
    """Scan all rows: [rows, heads, width] float32; zeros in rows that are no nodes. The layer learns their states."""
    parents, share = np.array(layer.slots.parents, np.int64), layer.slots.share
    heads, width = values.shape[1:]
    shape = (heads, keys.shape[2], width)
    before = layer.state.running
    first = np.zeros(shape, np.float32) if before is None else before[0].numpy()
    ends = layer.slots.reading or len(parents) == 1  # nothing but the last state can be committed
    last = np.empty(shape if ends else (0, *shape[1:]), np.float32)
    out = np.zeros((len(values), heads, width), np.float32)
    changes = np.empty_like(out)
    query, key, value, fade, rate = (
        tensor.float().contiguous().numpy() for tensor in (queries, keys, values, fades, rates)
    )

    def job(run: Run) -> None:
        advance(run, query, key, value, fade, rate, parents, first, changes, last, out, corrects)

    def behind(node: int) -> torch.Tensor:
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        nodes, state = np.array(path[::-1], np.int64), np.empty_like(first)
        _shared(share, lambda run: repeat(run, key, fade, changes, nodes, first, state))
        return torch.from_numpy(state[None])

    _shared(share, job)
    layer.follow((lambda _: torch.from_numpy(last[None])) if ends else behind)
    return torch.from_numpy(out)


def _shared(share: Share, job: Callable[[Run], None]) -> None:
    counters = np.zeros(COUNTER, np.int64)
    share(lambda rank: job(Run(counters.ctypes.data, 1, rank, NO_CYCLES)))


@kernel
def advance(  # type: ignore[no-untyped-def]
    run, queries, keys, values, fades, rates, parents, first, changes, last, out, corrects
):
    """Fill `changes` and `out`, and `last` with the end of a chain unless it is empty. Threads share the heads."""
    nodes = len(parents)
    heads, size, width = first.shape
    share = heads // keys.shape[1]
    ends = len(last) > 0
    kept = 2 if ends else nodes
    near = np.empty((kept, size, width), np.float32)
    for head in tasks(run.counters, 0, heads):
        group = head // share
        for node in range(nodes):
            parent = parents[node]
            before = first[head] if parent < 0 else near[parent % kept]
            state = last[head] if ends and node == nodes - 1 else near[node % kept]
            change, read = changes[node, head], out[node, head]
            fade, rate = fades[node, head], rates[node, head]
            key, query, value = keys[node, group], queries[node, group], values[node, head]
            for j in range(width):
                change[j] = 0.0
            if corrects:
                for i in range(size):
                    for j in range(width):
                        change[j] += before[i, j] * fade * key[i]
            for j in range(width):
                change[j] = (value[j] - change[j]) * rate
            for i in range(size):
                for j in range(width):
                    now = before[i, j] * fade + key[i] * change[j]
                    state[i, j] = now
                    read[j] += now * query[i]
    wait(run, 0, heads)


@kernel
def repeat(run, keys, fades, changes, path, first, state):  # type: ignore[no-untyped-def]
    """Fill `state` [heads, size, width] with the state behind a path of nodes, to the bit as `advance` had it."""
    heads, size, width = first.shape
    share = heads // keys.shape[1]
    for head in tasks(run.counters, 0, heads):
        group, own = head // share, state[head]
        own[:] = first[head]
        for node in path:
            fade, key, change = fades[node, head], keys[node, group], changes[node, head]
            for i in range(size):
                for j in range(width):
                    own[i, j] = own[i, j] * fade + key[i] * change[j]
    wait(run, 0, heads)


PROCESSOR = "cpu"
"""The kind of device that has a kernel of ours."""


def by_node(model: torch.nn.Module) -> None:
    """Make those layers of a transformers model that keep a state compute a segment over StateSlots node by node.

    A segment goes through such a module as if every row were a text of one token, its projections over all rows at
    once. The state is brought up to date node by node: on a processor by a kernel of ours, else by the module's own
    rule for a single token. So a node gets the same bits in any segment. transformers' functions
    that bring a state up to date learn of StateLayer; with any other they do what they did.
    """
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
    """Replace the rule of Gated DeltaNet over StateLayers: tensors [rows, 1, heads, ...]; g is the logarithm of what a
    state fades by."""
    kwargs["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
    if not isinstance(initial_state, StateLayer):
        return rule(query, key, value, g=g, beta=beta, initial_state=initial_state, **kwargs)
    if value.device.type == PROCESSOR:
        query, key = query[:, 0].float(), key[:, 0].float()
        if use_qk_l2norm_in_kernel:
            query, key = (
                rows * torch.rsqrt((rows * rows).sum(-1, keepdim=True) + 1e-6) for rows in (query, key)
            )
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


def _convolution(
    rule: Callable[..., Any],
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Replace the convolution of each channel over its last inputs, [rows, channels, size]; weight [channels, size].
    torch would compute all outputs of a window, and those of what lies before it."""
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


_RULES: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolution,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "mamba2_selective_state_update": _selective_update,
}
"""transformers' functions of states and their convolutions, and what stands in their place."""
