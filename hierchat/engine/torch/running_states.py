"""Compute layers that keep a running state over the rows of a segment: short convolutions, Gated DeltaNet, Mamba 2.

A text's state is stored after its committed tokens alone. Each row of a segment goes on from there by the tokens of its
own path, one after the other, whatever else is in the forward. A commit repeats the steps of the accepted path and
stores where they end. So a row's bits depend on its text only, and a tree needs no state per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hierchat.engine.cuda.kernels import kernel
from hierchat.engine.cuda.row_attention import PROMPT, StaticSegment
from hierchat.engine.cuda.row_states import NODES, Steps, Walk

KEPT = 4
"""Marks of a text: two for each of its last prompts."""


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
        """[layers, texts, heads, key size, value size], float32, and what rows give to it; empty if there are
        convolutions alone."""
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
        found: torch.Tensor = kernel("convolve", given.device)(
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
        given = (self.steps, query.contiguous(), skip, out)
        kernel("walk", query.device)(
            self.walk, self.running, self.after[1], layer, *given, pool=self.pool, delta=delta
        )
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
        inputs, of_trees = self.inputs[:, text], self.given[: self.pool]
        given = of_trees.view(self.layers, self.texts, NODES, -1)[:, text].index_select(1, path)
        inputs.copy_(torch.cat((inputs, given), 1)[:, len(nodes) :])
        if self.running.numel():
            walk, none = kernel("walk", inputs.device), (None, None, None)
            way = Walk(owner, zero, steps, zero, zero, path[None])
            walk(way, self.running, self.running, 0, self.steps, *none, pool=self.pool, delta=self.is_delta)

    def mark(self, text: int, length: int) -> StateMark:
        """Copy a text's states, after `length` tokens, to the processor's memory."""
        held = [one[:, text] if one.numel() else one for one in (self.running, self.inputs)]
        copies = [one.to("cpu", copy=True) for one in held]
        return StateMark(length, *copies)

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
