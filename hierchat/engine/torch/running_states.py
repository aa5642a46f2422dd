"""Compute layers that keep a running state over the rows of a segment: short convolutions, Gated DeltaNet, Mamba 2.

A state is stored after the committed tokens alone. Each row of a segment goes on from there by the tokens of its own
path, one after the other, whatever else is in the forward. A commit repeats the steps of the accepted path and stores
where they end. So a row's bits depend on its text only, and a tree needs no state per node.

One step of a head with state S [key size, value size], key k, query q, value v, fade g and rate b:

    S = exp(g) S,  c = b (v - S' k) for Gated DeltaNet, b v for Mamba 2,  S = S + k c',  out = S' q

Gated DeltaNet: Yang et al., 2024, arXiv 2412.06464. Mamba 2: Dao and Gu, 2024, arXiv 2405.21060."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from hierchat.engine.cuda.row_attention import DEPTH, StaticSegment

READ, TREE, COMMIT = range(3)
"""What a walk does: it takes all rows in order, brings what each reads, and stores the state; it takes the path of each
row, and brings what its last step reads; it takes one path, and stores the state."""
UNIT = 1e-6
"""Added to the squared length of queries and keys of Gated DeltaNet before they are divided by it."""


class Walk(NamedTuple):
    """Which rows are taken: int64, on the device. The path of a row is paths[row, :positions[row] - start + 1], less
    `start` each; in READ `rows` [1] are taken in order, in COMMIT so many of paths[0]."""

    mode: int
    positions: torch.Tensor
    start: torch.Tensor
    paths: torch.Tensor
    rows: torch.Tensor


class Steps(NamedTuple):
    """What rows give to the states of one layer; of all layers, with one more axis in front."""

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


@dataclass(frozen=True, slots=True)
class StateMark:
    """Copy of all layers' states after the first `length` tokens of a text."""

    length: int
    running: torch.Tensor
    inputs: torch.Tensor


class RunningStates:
    """Hold all layers' states after a text, and what the last segment gives to them, at addresses that stay from the
    first forward on."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.walk: Walk
        self.nodes: torch.Tensor
        """[rows] of the present forward: each row's node, int64."""
        none = torch.empty(0)
        self.inputs, self.given = none, none
        """The last inputs of convolutions [layers, size - 1, channels], and the nodes' [layers, DEPTH, channels]."""
        self.running = none
        """[layers, heads, key size, value size], float32; empty if there are convolutions alone."""
        self.steps = Steps(none, none, none, none)
        """Of the segment's nodes, DEPTH each."""
        self._after = [none, none]
        """As `inputs` and `running`, behind a piece of a prompt that is not committed yet."""
        self.is_delta = True

    def begin(self, segment: StaticSegment, *, reading: bool) -> None:
        """Prepare for a forward. `reading`: of a chain, which will be committed as a whole."""
        mode = READ if reading else TREE
        self.walk = Walk(mode, segment.positions, segment.first, segment.paths, segment.count)
        self.nodes = segment.nodes

    def convolve(
        self, layer: int, given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the convolution, of weight [channels, size], of each row's input [rows, channels] and those before it
        in its text."""
        (channels, size), layers = weight.shape, self.layers
        if not self.inputs.numel():
            self.inputs = given.new_zeros(layers, size - 1, channels)
            self.given = given.new_zeros(layers, DEPTH, channels)
            self._after[0] = torch.zeros_like(self.inputs)
        if self.walk.mode == READ:
            inputs = torch.cat((self.inputs[layer], given))
            last = self.walk.rows + torch.arange(size - 1, device=given.device)
            self._after[0][layer] = inputs.index_select(0, last)
        else:
            self.given[layer].index_copy_(0, self.nodes, given)
            inputs = torch.cat((self.inputs[layer], self.given[layer]))
        convolve = _on(given.device, "convolve", convolve_plainly)
        found: torch.Tensor = convolve(inputs, self.walk, weight, bias, len(given))
        return found

    def step(
        self, layer: int, steps: Steps, query: torch.Tensor, skip: torch.Tensor | None, *, delta: bool
    ) -> torch.Tensor:
        """Return what rows read of their states, [rows, heads, value size]. `query`: as keys; `skip` [heads]: how much
        of its value a row adds."""
        if not self.running.numel():
            self.is_delta = delta
            (_, heads, width), size = steps.values.shape, query.shape[-1]
            self.running = query.new_zeros(self.layers, heads, size, width, dtype=torch.float32)
            self._after[1] = torch.zeros_like(self.running)
            self.steps = Steps(*(one.new_zeros(self.layers, DEPTH, *one.shape[1:]) for one in steps))
        given = Steps(*(one.contiguous() for one in steps))
        if self.walk.mode == TREE:
            kept = self.steps.of(layer)
            for held, one in zip(kept, given, strict=True):
                held.index_copy_(0, self.nodes, one)
            given = kept
        out = steps.values.new_zeros(steps.values.shape)  # padding takes no step
        here, after = self.running[layer, None], self._after[1][layer, None]
        given = Steps(*(one[None] for one in given))
        self._take(self.walk, here, after, given, query.contiguous(), skip, out)
        return out

    def commit(self, nodes: Sequence[int]) -> None:
        """Store the states behind a path of nodes of the last segment."""
        if self.walk.mode == READ:
            self.inputs.copy_(self._after[0])
            self.running.copy_(self._after[1])
            return
        before = self.inputs.shape[1]
        last = [*range(before), *(before + node for node in nodes)][len(nodes) :]
        told = torch.tensor([len(nodes), 0, *last, *nodes]).to(self.inputs.device)
        count, zero, places, path = told.split([1, 1, before, len(nodes)])
        self.inputs.copy_(torch.cat((self.inputs, self.given), 1).index_select(1, places))
        if self.running.numel():
            walk = Walk(COMMIT, zero, zero, path[None], count)
            self._take(walk, self.running, self.running, self.steps, None, None, None)

    def _take(self, walk: Walk, running: torch.Tensor, *more: Any) -> None:
        _on(running.device, "walk", walk_plainly)(walk, running, *more, delta=self.is_delta)

    def mark(self, length: int) -> StateMark:
        """Copy the states after a text of `length` tokens."""
        return StateMark(length, self.running.clone(), self.inputs.clone())

    def restore(self, mark: StateMark | None) -> None:
        """Go back to a mark; None: to the beginning."""
        mark = mark or StateMark(0, torch.empty(0), torch.empty(0))
        for held, kept in ((self.running, mark.running), (self.inputs, mark.inputs)):
            if kept.numel():
                held.copy_(kept)
            else:
                held.zero_()

    def wipe(self) -> None:
        """Overwrite all but the states of committed text."""
        for one in (self.given, *self.steps, *self._after):
            one.zero_()


def _on(device: torch.device, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Triton kernel of this name on CUDA; elsewhere what computes the same plainly."""
    if device.type != "cuda" or find_spec("triton") is None:
        return plain
    from hierchat.engine.cuda import triton_states

    kernel: Callable[..., Any] = getattr(triton_states, name)
    return kernel


def path_of(walk: Walk, row: int) -> list[int]:
    """Return the nodes that a row's walk takes, oldest first."""
    if walk.mode == READ:
        return list(range(int(walk.rows)))
    length = int(walk.rows) if walk.mode == COMMIT else int(walk.positions[row] - walk.start) + 1
    nodes: list[int] = (walk.paths[row, : max(length, 0)] - walk.start).tolist()
    return nodes


def convolve_plainly(
    inputs: torch.Tensor, walk: Walk, weight: torch.Tensor, bias: torch.Tensor | None, rows: int
) -> torch.Tensor:
    """Compute in plain torch what triton_states.convolve computes: [rows, channels], of `inputs` [size - 1 + nodes,
    channels] and weight [channels, size]."""
    size, out = weight.shape[-1], []
    for row in range(rows):
        path = range(row + 1) if walk.mode == READ else path_of(walk, row)
        places = [*range(size - 1), *(size - 1 + node for node in path)][-size:]
        total = (inputs[places].float() * weight.float().T[-len(places) :]).sum(0)
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
        behind: dict[int, torch.Tensor] = {}
        for row in range(len(walk.positions) if walk.mode == TREE else 1):
            now, path = state, path_of(walk, row)
            for node in path:
                if node not in behind:
                    behind[node] = _stepped(now, steps.of(layer), node, delta)
                now = behind[node]
                if query is not None and out is not None and (walk.mode == READ or node == path[-1]):
                    asker = node if walk.mode == READ else row
                    scale = query.shape[-1] ** -0.5 if delta else 1.0
                    read = (now * _by_head(query[asker], len(now), delta) * scale).sum(1)
                    value = steps.values[layer, node].float()
                    out[asker] = read if skip is None else read + skip[:, None] * value
        if walk.mode != TREE:
            after[layer] = now


def _stepped(state: torch.Tensor, steps: Steps, node: int, delta: bool) -> torch.Tensor:
    key, change = _by_head(steps.keys[node], len(state), delta), steps.values[node].float()
    state = state * steps.fades[node].exp()[:, None, None]
    if delta:
        change = change - (state * key).sum(1)
    return state + key * (steps.rates[node][:, None] * change)[:, None]


def _by_head(some: torch.Tensor, heads: int, delta: bool) -> torch.Tensor:
    """Return a row's keys or queries for each head of values, [heads, key size, 1]."""
    some = some.float()
    if delta:
        some = some * torch.rsqrt(some.square().sum(-1, keepdim=True) + UNIT)
    return some.repeat_interleave(heads // len(some), 0)[..., None]
