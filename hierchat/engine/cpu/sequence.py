"""Keep a text of the CPU engine: its tokens, and the pages of slots that hold their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.memory import CHUNK, MOST_NODES, SLOTS, STATES, STEP, KeyValues
from hierchat.engine.pages import PagedSequence
from hierchat.engine.runner import CachedSequence, Segment
from hierchat.engine.verification import Rows

PageSlot = tuple[int, int]


def copy_slots(
    source: Sequence[KeyValues], goal: Sequence[KeyValues], one: PageSlot, other: PageSlot, count: int = 1
) -> None:
    """Copy keys and values of `count` slots from one place to another, in every layer."""
    (page, at), (target, to) = one, other
    given, taken = slice(at, at + count), slice(to, to + count)
    for a, b in zip(source, goal, strict=True):
        b.keys[target, ..., taken] = a.keys[page, ..., given]
        b.key_scales[target, ..., taken] = a.key_scales[page, ..., given]
        b.values[target, ..., taken, :] = a.values[page, ..., given, :]
        b.value_scales[target, ..., taken] = a.value_scales[page, ..., given]


SNAPSHOTS = 6
"""Snapshots of a sequence: two for each of its last prompts."""
SNAPSHOT_EVERY = 1024
"""Tokens of a prompt after which a snapshot is taken."""


class Snapshot(NamedTuple):
    """Running states of a text's first `length` tokens: float32 [layers, heads, key_size, value_size] before chunk
    `folded`, and the records since, [layers, rows, record]."""

    length: int
    folded: int
    state: NDArray[np.float32]
    records: NDArray[np.float32]


def _state_behind(length: int) -> int:
    """Return the chunk at whose beginning the state was stored that the row after `length` tokens reads."""
    return max(length // STEP - 1, 0)


class CpuSequence(PagedSequence):
    """One text of a CpuRunner. `number`: its place among the runner's running states, if any.
    It can go back by STEP tokens and more; to go further back it keeps snapshots, because states cannot be cut."""

    runner: Any
    """A CpuRunner. Its module imports this one, so its type cannot be named here."""

    def __init__(self, runner: Any, number: int = 0) -> None:
        super().__init__(runner, runner.pages)
        self.number = number
        self.block: Sequence[int] = ()
        self.folded = 0
        """The newest stored state is the one before this chunk of STEP positions."""
        self._reached: int | None = None
        """Tokens that the states hold beyond the committed ones, while a piece of a prompt is not committed."""
        self._reading = False
        self._newest = self._written = 0
        """Since states were loaded: the newest stored state, and the end of the records."""
        self._snapshots: list[Snapshot] = []

    def rollback(self, length: int) -> None:
        if self.runner.states and length < max(len(self.tokens), self._reached or 0):
            length = self._restore(length)
        super().rollback(length)

    def copy_page(self, source: int, goal: int, count: int) -> None:
        copy_slots(self.runner.slots, self.runner.slots, (source, 0), (goal, 0), count)

    def wipe_page(self, page: int, first: int = 0) -> None:
        for layers in self.runner.slots:
            layers.keys[page, ..., first:] = 0
            layers.key_scales[page, ..., first:] = 0
            layers.values[page, ..., first:, :] = 0
            layers.value_scales[page, ..., first:] = 0

    def wipe(self) -> None:
        super().wipe()
        if self.runner.states and not self.tokens and self._written:
            self.runner.states.running[self.number] = 0
            self.runner.states.records[self.number] = 0
            self._written = 0

    def begin(self, block: Segment) -> None:
        """Note the segment of the next forward. Raises ValueError if its running states cannot be computed."""
        self.block = block.tokens
        if not self.runner.states:
            return
        reading, length = not block.logits, len(self.tokens)
        if self._reached is not None:
            raise ValueError("A piece of a prompt was read and not committed: roll the sequence back first.")
        if not reading and len(block.tokens) > MOST_NODES:
            raise ValueError(
                f"A tree of {len(block.tokens)} rows: models with running states take {MOST_NODES}."
            )
        if length and (reading != self._reading or (reading and length - self.last_prompt >= SNAPSHOT_EVERY)):
            self._snapshots = [one for one in self._snapshots if one.length != length]
            self._snapshots = [*self._snapshots, self._snapshot(length)][-SNAPSHOTS:]
        self._reading = reading

    def folded_in(self, block: Segment) -> None:
        """Note that the forward of a segment has brought the stored states up to date."""
        if self.runner.states:
            start, end = len(self.tokens), len(self.tokens) + len(block.tokens)
            self._reached = None if block.logits else end
            self.folded = (start if block.logits else end - 1) // STEP
            self._newest, self._written = max(self._newest, self.folded), max(self._written, end)

    def _snapshot(self, length: int) -> Snapshot:
        base = min(self.folded, _state_behind(length))
        state = self.runner.states.running[self.number, :, :, base % STATES].copy()
        slots = np.arange(base * STEP, length) % SLOTS
        return Snapshot(length, base, state, self.runner.states.records[self.number][:, slots])

    def _within_reach(self, length: int) -> bool:
        if self._reached is not None:
            return False
        first = _state_behind(length)
        stored = first == 0 or first > self._newest - STATES
        return length == len(self.tokens) or (stored and first * STEP >= self._written - SLOTS)

    def _restore(self, length: int) -> int:
        """Bring running states back to the first `length` tokens, or to the nearest snapshot before; return where."""
        if length and self._within_reach(length):
            self.folded = min(self.folded, _state_behind(length))
        else:
            kept = [one for one in self._snapshots if one.length <= length]
            empty = Snapshot(0, 0, np.zeros((), np.float32), np.zeros((), np.float32))
            length = self._load(max(kept, key=lambda one: one.length, default=empty))
        self._snapshots = [one for one in self._snapshots if one.length <= length]
        self._reached, self._reading = None, False
        return length

    def _load(self, snapshot: Snapshot) -> int:
        self.folded = self._newest = snapshot.folded
        self._written = snapshot.length
        if not snapshot.length:
            return 0
        self.runner.states.running[self.number, :, :, snapshot.folded % STATES] = snapshot.state
        slots = np.arange(snapshot.folded * STEP, snapshot.length) % SLOTS
        self.runner.states.records[self.number][:, slots] = snapshot.records
        return snapshot.length

    def read(self, tokens: Sequence[int], hidden: bool = False) -> NDArray[np.float32] | None:
        rows, states = self.runner.rows_that_fit(len(self.tokens), len(tokens)), list[NDArray[np.float32]]()
        for begin in range(0, len(tokens), rows):
            part = tokens[begin : begin + rows]
            segment = Segment(self, part, range(-1, len(part) - 1), logits=False, hidden=hidden)
            states.append(self.runner.run([segment])[1].copy())
            self._extend(part)
        return np.concatenate(states) if hidden and states else None

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        return self.runner.forward([Segment(self, tokens, parents)])[0]

    def commit(self, nodes: Sequence[int]) -> None:
        start, slots = len(self.tokens), self.runner.slots
        for place, node in enumerate(nodes):
            if node != place:
                copy_slots(slots, slots, self._slot(start + node), self._slot(start + place))
                if self.runner.states:
                    records = self.runner.states.records[self.number]
                    records[:, (start + place) % SLOTS] = records[:, (start + node) % SLOTS]
        self._extend([self.block[node] for node in nodes])

    def _extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        if self._reached == len(self.tokens):
            self._reached = None

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        """Take over positions of `other`, a sequence of a CpuRunner of the same shape. Whole pages of the same runner
        are shared, the rest is copied. With running states it takes over as many as a snapshot of `other` has."""
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        if not isinstance(other, CpuSequence) or other.runner.shapes != self.runner.shapes:
            return False
        if other.runner.state_shape != self.runner.state_shape:
            return False
        snapshot = None
        if self.runner.states and tokens:
            snapshot = other.snapshot_before(end)
            if snapshot is None or snapshot.length <= start:
                return False
            tokens, end = tokens[: snapshot.length - start], snapshot.length
        if other.runner is not self.runner:
            self.make_room(start, end)
        with other.runner.pages.lock:  # before it is written to or gives pages back, it waits
            if other.tokens[:end] != [*self.tokens, *tokens]:
                return False
            if other.runner is self.runner:
                start = self._share(other, start, end)
                self.make_room(start, end)
            for chunk in range(start // CHUNK, -(-end // CHUNK)):
                first, last = max(start - chunk * CHUNK, 0), min(end - chunk * CHUNK, CHUNK)
                source, goal = (other.pages[chunk], first), (self.pages[chunk], first)
                copy_slots(other.runner.slots, self.runner.slots, source, goal, last - first)
        self.go_on(tokens, snapshot)
        return True

    def go_on(self, tokens: Sequence[int], snapshot: Snapshot | None = None) -> None:
        """Commit tokens whose keys and values are in the slots, and load the running states that follow."""
        self.tokens.extend(tokens)
        if snapshot:
            self._load(snapshot)
            self._snapshots.append(snapshot)

    @property
    def last_prompt(self) -> int:
        """Return the length of the newest snapshot; 0 if there is none."""
        return max((one.length for one in self._snapshots), default=0)

    def snapshot_before(self, length: int) -> Snapshot | None:
        """Return running states of as many of the first `length` tokens as can be had."""
        if 0 < length <= len(self.tokens) and self._within_reach(length):
            return self._snapshot(length)
        kept = [one for one in self._snapshots if one.length <= length]
        return max(kept, key=lambda one: one.length, default=None)

    def close(self) -> None:
        self.rollback(0)
        self.runner.numbers.append(self.number)

    def _slot(self, position: int) -> tuple[int, int]:
        return self.pages[position // CHUNK], position % CHUNK
