"""Layers that keep a running state beside those that keep keys and values: short convolutions, Gated DeltaNet, Mamba 2.

A state cannot be taken back by a length. So each node of a segment has its own, made from that of the node that it
follows, and what is committed is the state behind a node. by_node.py has transformers' modules compute it so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from hierchat.engine.torch.slots import Slots

STATES = {"conv", "linear_attention"}
"""transformers' names of layers that keep a running state and nothing else."""
KEPT = 6
"""Marks of a sequence: two for each of its last prompts."""
RECENT = 16
"""Ends of steps that are kept beside them where a text is taken back within its last steps, as a draft model's is."""


Share: TypeAlias = Callable[[Callable[[int], Any]], None]
"""Has threads do a job of many tasks; each is told its number."""


def alone(job: Callable[[int], Any]) -> None:
    """In this thread."""
    job(0)


class Windows(torch.Tensor):
    """Inputs of a convolution of which only the last output of each row is wanted."""


class State(NamedTuple):
    """What a layer keeps of a text. Never changed."""

    inputs: torch.Tensor | None = None
    """[size - 1, channels]: the last inputs of its convolution; None before the first."""
    running: torch.Tensor | None = None
    """[1, heads, ...]; None before the first token, and where there is a convolution alone."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The states of all layers behind the first `length` tokens of a text."""

    length: int
    states: tuple[State, ...]


class StateLayer(LinearAttentionCacheLayerMixin):
    """One layer's states: behind what is committed, and behind each node of the last segment."""

    def __init__(self, slots: StateSlots) -> None:
        super().__init__()
        self.slots = slots
        self.state = State()
        self._windows: torch.Tensor | None = None  # [rows, size, channels]
        self._running: dict[int, torch.Tensor] = {}
        self._behind: Callable[[int], torch.Tensor] | None = None
        # A module asks for its convolution over windows, not for its own update of a single state
        self.record_past = True
        self.has_previous_state = {0: True}
        self.conv_states = self.recurrent_states = {0: self}

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: shapes are those of the first state."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, *, conv_kernel_size: int, **kwargs: Any
    ) -> torch.Tensor:
        """[rows, channels, size]: each row's own input and those before it in its text, from [rows, channels, 1]."""
        self._running, self._behind = {}, None
        inputs = conv_states[:, :, 0]
        before = self.state.inputs
        if before is None:
            before = inputs.new_zeros(conv_kernel_size - 1, inputs.shape[1])
        self._windows = _gathered(torch.cat((before, inputs)), self.slots.windows(conv_kernel_size))
        return self._windows.transpose(1, 2).as_subclass(Windows)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """They are here already."""
        return recurrent_states

    def nodes(self) -> Iterator[tuple[int, torch.Tensor | None]]:
        """Each node of the segment, with the running state of what it follows; `put` brings the one behind it."""
        for node, parent in enumerate(self.slots.parents):
            yield node, self.state.running if parent < 0 else self._running[parent]

    def put(self, node: int, running: torch.Tensor) -> None:
        self._running[node] = running
        if self.slots.reading:  # a chain, of which only the end will be committed
            self._running.pop(node - 1, None)

    def follow(self, behind: Callable[[int], torch.Tensor]) -> None:
        """In place of `put`: what makes the running state behind a node, once it is known which is committed."""
        self._behind = behind

    def commit(self, node: int) -> None:
        inputs = None if self._windows is None else self._windows[node, 1:].clone()
        if self._behind:
            self.state = State(inputs, self._behind(node))
        else:
            running = self._running.get(node)
            self.state = State(inputs, None if running is None else running.clone())
        self._windows, self._running, self._behind = None, {}, None


class StateSlots(Slots):
    """Slots of a text of which some layers keep states. States stand at marks: the beginning of the last piece that was
    read of a prompt, and its end. Taking a text back goes to the last mark before."""

    def __init__(self, keeps: Sequence[bool], capacity: int, bucket: int, share: Share = alone) -> None:
        """`keeps`: by layer, whether it keeps a state. `share`: how its heads are shared out on a processor."""
        super().__init__(len(keeps), capacity, bucket)
        self.share = share
        self.parents: Sequence[int] = ()
        self.reading = False
        self._states = [StateLayer(self) for kept in keeps if kept]
        self._follows: Sequence[int] = ()
        self._windows: dict[int, torch.Tensor] = {}
        self._marks: list[Mark] = []
        self._recent: deque[Mark] = deque(maxlen=0)
        layers = iter(self._states)
        for at, kept in enumerate(keeps):
            if kept:
                self.layers[at] = next(layers)

    def begin(self, parents: Sequence[int], follows: Sequence[int], *, reading: bool) -> None:
        if self.reading and reading and self._marks:
            self._marks.pop()
        if self.reading or reading:
            others = [mark for mark in self._marks if mark.length != self.length]
            self._marks = [*others, self._mark()][-KEPT:]
        self.parents, self.reading = parents, reading
        self._follows, self._windows = follows, {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Whichever layer is asked: there may be none with keys."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def windows(self, size: int) -> torch.Tensor:
        """[rows, size]: where in the last size - 1 committed inputs, followed by the rows', each row's window is."""
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
        empty = Mark(0, (State(),) * len(self._states))
        last = max((*self._marks, *recent), key=lambda mark: mark.length, default=empty)
        self._recent = deque(recent, RECENT if 0 < last.length < length else self._recent.maxlen)
        for layer, state in zip(self._states, last.states, strict=True):
            layer.state = state
        self.length, self.reading = last.length, False

    def _mark(self) -> Mark:
        return Mark(self.length, tuple(layer.state for layer in self._states))


def _gathered(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """rows[places], which torch copies number by number."""
    return rows.index_select(0, places.view(-1)).view(*places.shape, -1)


def keeps_states(config: Any) -> list[bool]:
    """By layer, whether it keeps a running state."""
    kinds = getattr(config, "layer_types", None) or []
    return [kind in STATES for kind in kinds]
