"""Compute layers that keep a running state over the rows of a segment: short convolutions, Gated DeltaNet, Mamba 2.

A text's state is stored after its committed tokens alone. Each row of a segment goes on from there by the tokens of its
own path, one after the other, whatever else is in the forward. A commit repeats the steps of the accepted path and
stores where they end. So a row's bits depend on its text only, and a tree needs no state per node.

One step of a head with state S [key size, value size], key k, query q, value v, fade g and rate b:

    S = exp(g) S,  c = b (v - S' k) for Gated DeltaNet, b v for Mamba 2,  S = S + k c',  out = S' q

Gated DeltaNet: Yang et al., 2024, arXiv 2412.06464. Mamba 2: Dao and Gu, 2024, arXiv 2405.21060."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from hierchat.engine.cuda.row_attention import PROMPT, StaticSegment

NODES = 96
"""Nodes of a tree, at most."""
KEPT = 4
"""Marks of a text: two for each of its last prompts."""
UNIT = 1e-6
"""Added to the squared length of queries and keys of Gated DeltaNet before they are divided by it."""


class Walk(NamedTuple):
    """Walks through states, int64 on a device, [walks] each: row w takes `steps` steps from the state of text `owners`.
    A row of a prompt's piece (`reads`) is followed by the rows behind it, and the state where they end is stored. Any
    other takes the nodes of its own path, paths[w] less `starts`; `nodes` are places in a piece."""

    owners: torch.Tensor
    nodes: torch.Tensor
    steps: torch.Tensor
    reads: torch.Tensor
    starts: torch.Tensor
    paths: torch.Tensor


class Steps(NamedTuple):
    """What rows give to states. The rows of trees come first, by layer, text and node; then those of pieces."""

    keys: torch.Tensor
    """[rows, key heads, key size]."""
    values: torch.Tensor
    """[rows, heads, value size]."""
    fades: torch.Tensor
    """[rows, heads] logarithms, float32."""
    rates: torch.Tensor
    """[rows, heads], float32."""


class StateMark(NamedTuple):
    """Copy of all layers' states after the first `length` tokens of a text."""

    length: int
    running: torch.Tensor
    inputs: torch.Tensor


class RunningStates:
    """Hold all layers' states of several texts, and what the last forward gives to them, at addresses that stay from
    the first forward on."""

    def __init__(self, layers: int, texts: int = 1) -> None:
        self.layers, self.texts = layers, texts
        self.walk: Walk
        self._places: torch.Tensor
        """[layers, rows] where the rows of the present forward keep what they give."""
        none = torch.empty(0)
        self.inputs, self.given = none, none
        """The last inputs of convolutions [layers, texts, size - 1, channels]; those of rows, in the order of Steps."""
        self.running, self.steps = none, Steps(none, none, none, none)
        """[layers, texts, heads, key size, value size], float32; empty if there are convolutions alone."""
        self.after = [none, none]
        """As `inputs` and `running`, behind pieces of prompts that are not committed yet."""
        self.is_delta = True

    @property
    def pool(self) -> int:
        """Return the place of the first row of pieces."""
        return self.layers * self.texts * NODES

    def begin(self, segment: StaticSegment) -> None:
        """Prepare for a forward. A CUDA graph may hold this."""
        self.walk = Walk(
            segment.owners, segment.nodes, segment.steps, segment.reads, segment.starts, segment.paths
        )
        tree = segment.owners * NODES + segment.nodes
        layers = torch.arange(self.layers, device=tree.device)[:, None] * (self.texts * NODES)
        piece = self.pool + torch.arange(len(tree), device=tree.device)
        self._places = torch.where(segment.reads == 1, piece, tree + layers)

    def convolve(
        self, layer: int, given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the convolution, of weight [channels, size], of each row's input [rows, channels] and those before it
        in its text."""
        channels, size = weight.shape
        if not self.inputs.numel():
            self.inputs = given.new_zeros(self.layers, self.texts, size - 1, channels)
            self.given = given.new_zeros(self.pool + PROMPT, channels)
            self.after[0] = torch.zeros_like(self.inputs)
        self.given.index_copy_(0, self._places[layer], given)
        convolve = _on(given.device, "convolve", convolve_plainly)
        found: torch.Tensor = convolve(
            self.given, self.inputs, self.after[0], layer, self.walk, weight, bias, self.pool
        )
        return found

    def step(
        self, layer: int, steps: Steps, query: torch.Tensor, skip: torch.Tensor | None, *, delta: bool
    ) -> torch.Tensor:
        """Return what rows read of their states, [rows, heads, value size]. `query`: as keys; `skip` [heads]: how much
        of its value a row adds."""
        if not self.running.numel():
            self.is_delta = delta
            (_, heads, width), size = steps.values.shape, query.shape[-1]
            self.running = query.new_zeros(self.layers, self.texts, heads, size, width, dtype=torch.float32)
            self.after[1] = torch.zeros_like(self.running)
            self.steps = Steps(*(one.new_zeros(self.pool + PROMPT, *one.shape[1:]) for one in steps))
        for held, one in zip(self.steps, steps, strict=True):
            held.index_copy_(0, self._places[layer], one)
        out = steps.values.new_zeros(steps.values.shape)  # padding takes no step
        walk = _on(query.device, "walk", walk_plainly)
        given = (self.steps, query.contiguous(), skip, out)
        walk(self.walk, self.running, self.after[1], layer, *given, pool=self.pool, delta=delta)
        return out

    @torch.inference_mode()
    def commit(self, text: int, nodes: Sequence[int], *, reading: bool) -> None:
        """Store a text's states behind a path of nodes of its last segment; `reading`: behind all of it."""
        if reading:
            for held, after in zip((self.inputs, self.running), self.after, strict=True):
                if held.numel():
                    held[:, text] = after[:, text]
            return
        told = torch.tensor([text, len(nodes), 0, *nodes]).to(self.inputs.device)
        owner, steps, zero, path = told.split([1, 1, 1, len(nodes)])
        given = (
            self.given[: self.pool].view(self.layers, self.texts, NODES, -1)[:, text].index_select(1, path)
        )
        inputs = self.inputs[:, text]
        inputs.copy_(torch.cat((inputs, given), 1)[:, len(nodes) :])
        if self.running.numel():
            walk, way = (
                _on(inputs.device, "walk", walk_plainly),
                Walk(owner, zero, steps, zero, zero, path[None]),
            )
            none = (None, None, None)
            walk(way, self.running, self.running, 0, self.steps, *none, pool=self.pool, delta=self.is_delta)

    def mark(self, text: int, length: int) -> StateMark:
        """Copy a text's states, after `length` tokens."""
        running, inputs = (
            one[:, text].clone() if one.numel() else one for one in (self.running, self.inputs)
        )
        return StateMark(length, running, inputs)

    @torch.inference_mode()
    def restore(self, text: int, mark: StateMark | None) -> None:
        """Bring a text's states back to a mark; None: to the beginning."""
        mark = mark or StateMark(0, torch.empty(0), torch.empty(0))
        for held, kept in ((self.running, mark.running), (self.inputs, mark.inputs)):
            if held.numel():
                held[:, text] = kept if kept.numel() else 0

    @torch.inference_mode()
    def wipe(self) -> None:
        """Overwrite all but the states of committed text."""
        for one in (self.given, *self.steps, *self.after):
            one.zero_()


class StateMarks:
    """Keep copies of one text's states to go back to: at the beginning and end of the last piece of each prompt."""

    def __init__(self, states: RunningStates, text: int = 0) -> None:
        self.states, self.text = states, text
        self.reading = False
        self._marks: list[StateMark] = []

    def note(self, length: int, nodes: int, *, reading: bool) -> None:
        """Note that a forward over so many nodes behind `length` tokens begins. Raises ValueError for too many."""
        if nodes > NODES and not reading:
            raise ValueError(f"A tree of {nodes} nodes: models with running states take {NODES}.")
        if self.reading and reading:
            self._marks = self._marks[:-1]
        if self.reading or reading:
            others = [mark for mark in self._marks if mark.length != length]
            self._marks = [*others, self.states.mark(self.text, length)][-KEPT:]
        self.reading = reading

    def commit(self, nodes: Sequence[int]) -> None:
        """Store the states behind a path of nodes of the last segment."""
        if nodes:
            self.states.commit(self.text, nodes, reading=self.reading)

    def rollback(self, length: int) -> int:
        """Go back to the last mark that is not beyond `length`, and return its length."""
        self._marks = [mark for mark in self._marks if mark.length <= length]
        last = max(self._marks, key=lambda mark: mark.length, default=None)
        self.states.restore(self.text, last)
        self.reading = False
        return last.length if last else 0


def _on(device: torch.device, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Triton kernel of this name on CUDA; elsewhere what computes the same plainly."""
    if device.type != "cuda" or find_spec("triton") is None:
        return plain
    from hierchat.engine.cuda import triton_states

    kernel: Callable[..., Any] = getattr(triton_states, name)
    return kernel


def _taken(walk: Walk, row: int, layer: int, texts: int, pool: int) -> list[int]:
    """Return the places of what a walk takes, oldest first."""
    count = int(walk.steps[row])
    if walk.reads[row]:
        return list(range(pool + row, pool + row + count))
    first = (layer * texts + int(walk.owners[row])) * NODES
    places: list[int] = (walk.paths[row, :count] - walk.starts[row] + first).tolist()
    return places


def convolve_plainly(
    given: torch.Tensor,  # [places, channels]
    inputs: torch.Tensor,  # [layers, texts, size - 1, channels]
    after: torch.Tensor,  # as inputs
    layer: int,
    walk: Walk,
    weight: torch.Tensor,  # [channels, size]
    bias: torch.Tensor | None,
    pool: int,
) -> torch.Tensor:
    """Compute in plain torch what triton_states.convolve computes: [rows, channels]."""
    size, out = weight.shape[-1], []
    for row, owner in enumerate(walk.owners.tolist()):
        places = _taken(walk, row, layer, inputs.shape[1], pool)
        if walk.reads[row]:
            if places:
                after[layer, owner] = torch.cat((inputs[layer, owner], given[places]))[len(places) :]
            places = list(range(pool + row - int(walk.nodes[row]), pool + row + 1))
        window = torch.cat((inputs[layer, owner], given[places]))[-size:]
        total = (window.float() * weight.float().T).sum(0)
        out.append(total if bias is None else total + bias.float())
    return torch.stack(out).to(given.dtype)


def walk_plainly(
    walk: Walk,
    running: torch.Tensor,  # [layers, texts, heads, key size, value size]
    after: torch.Tensor,  # as running
    layer: int,
    steps: Steps,
    query: torch.Tensor
    | None,  # [rows, key heads, key size]; None to store all layers' states behind a path, and
    skip: torch.Tensor | None,  # [heads]
    out: torch.Tensor | None,  # [rows, heads, value size]
    *,
    pool: int,
    delta: bool,
) -> None:
    """Compute in plain torch what triton_states.walk computes."""
    for here in range(len(running)) if query is None else (layer,):
        behind: dict[tuple[int, int], torch.Tensor] = {}
        for row, owner in enumerate(walk.owners.tolist()):
            now, places = running[here, owner], _taken(walk, row, here, running.shape[1], pool)
            reads = bool(walk.reads[row])
            for number, place in enumerate(places):
                if (owner, place) not in behind:
                    behind[owner, place] = _stepped(now, steps, place, delta)
                now = behind[owner, place]
                if query is not None and out is not None and (reads or number == len(places) - 1):
                    asker = row + number * reads
                    scale = query.shape[-1] ** -0.5 if delta else 1.0
                    read = (now * _by_head(query[asker], len(now), delta) * scale).sum(1)
                    out[asker] = read if skip is None else read + skip[:, None] * steps.values[place].float()
            if places and (reads or query is None):
                after[here, owner] = now


def _stepped(state: torch.Tensor, steps: Steps, place: int, delta: bool) -> torch.Tensor:
    key, change = _by_head(steps.keys[place], len(state), delta), steps.values[place].float()
    state = state * steps.fades[place].exp()[:, None, None]
    if delta:
        change = change - (state * key).sum(1)
    return state + key * (steps.rates[place][:, None] * change)[:, None]


def _by_head(some: torch.Tensor, heads: int, delta: bool) -> torch.Tensor:
    """Return a row's keys or queries for each head of values, [heads, key size, 1]."""
    some = some.float()
    if delta:
        some = some * torch.rsqrt(some.square().sum(-1, keepdim=True) + UNIT)
    return some.repeat_interleave(heads // len(some), 0)[..., None]
