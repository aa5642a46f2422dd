"""Keep a text of the CPU engine: its tokens, and the pages of slots that hold their keys and values."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.cpu.memory import CHUNK, KeyValues
from hierchat.engine.runner import CachedSequence, Segment
from hierchat.engine.verification import Rows

if TYPE_CHECKING:
    from hierchat.engine.cpu.runner import CpuRunner


class Pages:
    """Lend pages of key-value slots: each holds one chunk of positions of a text, or of several that begin alike.
    `lock` is held by whoever calls a method: replies begin and end while others go on."""

    def __init__(self, count: int) -> None:
        self.lock = threading.Lock()
        # The one that was given back last is taken first: its memory is there already.
        self._free = list(reversed(range(count)))
        self._holders = [0] * count
        self._soiled: set[int] = set()
        """Free pages that still hold keys and values."""

    def take(self) -> int:
        """Take a free page for one text."""
        page = self._free.pop()
        self._holders[page] = 1
        self._soiled.discard(page)
        return page

    def share(self, page: int) -> int:
        """Count one more text that holds a page, and return the page; none may write to it from now on."""
        self._holders[page] += 1
        return page

    def shared(self, page: int) -> bool:
        """Tell whether several texts hold a page."""
        return self._holders[page] > 1

    @property
    def free(self) -> int:
        return len(self._free)

    def give(self, page: int) -> None:
        """Give a page back that a text holds no longer."""
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)
            self._soiled.add(page)

    def soiled(self) -> list[int]:
        """List the free pages that hold keys and values, for the caller to overwrite."""
        pages, self._soiled = [*self._soiled], set()
        return pages


Place = tuple[int, int]
"""A page and a slot of it."""


def copy_slots(
    source: Sequence[KeyValues], goal: Sequence[KeyValues], one: Place, other: Place, count: int = 1
) -> None:
    """Copy keys and values of `count` slots from one place to another, in every layer."""
    (page, at), (target, to) = one, other
    given, taken = slice(at, at + count), slice(to, to + count)
    for a, b in zip(source, goal, strict=True):
        b.keys[target, ..., taken] = a.keys[page, ..., given]
        b.key_scales[target, ..., taken] = a.key_scales[page, ..., given]
        b.values[target, ..., taken, :] = a.values[page, ..., given, :]
        b.value_scales[target, ..., taken] = a.value_scales[page, ..., given]


def wipe_slots(slots: Sequence[KeyValues], page: int, first: int = 0) -> None:
    """Overwrite keys and values of a page from its slot `first` on, in every layer."""
    for layers in slots:
        layers.keys[page, ..., first:] = 0
        layers.key_scales[page, ..., first:] = 0
        layers.values[page, ..., first:, :] = 0
        layers.value_scales[page, ..., first:] = 0


class CpuSequence(CachedSequence):
    """Hold one text of a CpuRunner."""

    runner: CpuRunner

    def __init__(self, runner: CpuRunner) -> None:
        super().__init__(runner)
        self.block: Sequence[int] = ()
        self.pages: list[int] = []
        """The page that holds each chunk of positions; pages of committed chunks may be held by others, too."""

    def rollback(self, length: int) -> None:
        del self.tokens[length:]
        with self.runner.pages.lock:
            self._keep(-(-length // CHUNK))

    def wipe(self) -> None:
        pages, slots = self.runner.pages, self.runner.slots
        with pages.lock:
            for page in pages.soiled():
                wipe_slots(slots, page)
            last, first = divmod(len(self.tokens), CHUNK)
            for page in self.pages[last:]:
                if not pages.shared(page):  # else it holds another text
                    wipe_slots(slots, page, first)
                first = 0

    def read(self, tokens: Sequence[int], hidden: bool = False) -> NDArray[np.float32] | None:
        rows, states = self.runner.rows_that_fit(len(self.tokens), len(tokens)), list[NDArray[np.float32]]()
        for begin in range(0, len(tokens), rows):
            part = tokens[begin : begin + rows]
            segment = Segment(self, part, range(-1, len(part) - 1), logits=False, hidden=hidden)
            states.append(self.runner.run([segment])[1].copy())
            self.tokens.extend(part)
        return np.concatenate(states) if hidden and states else None

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        return self.runner.forward([Segment(self, tokens, parents)])[0]

    def commit(self, nodes: Sequence[int]) -> None:
        start, slots = len(self.tokens), self.runner.slots
        for place, node in enumerate(nodes):
            if node != place:
                copy_slots(slots, slots, self._slot(start + node), self._slot(start + place))
        self.tokens.extend(self.block[node] for node in nodes)

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        """Take over positions of `other`, as the contract has it, if that is of a CpuRunner of the same shape. Whole
        pages of the same runner are held together; what lies behind them, and what another runner holds, is copied."""
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        if not isinstance(other, CpuSequence) or other.runner.shapes != self.runner.shapes:
            return False
        if other.runner is not self.runner:
            self.make_room(start, end)
        with other.runner.pages.lock:  # before it is written to or gives pages back, it waits
            if other.tokens[:end] != [*self.tokens, *tokens]:
                return False
            if other.runner is self.runner:
                for chunk in range(start // CHUNK, end // CHUNK):
                    self._keep(chunk)
                    self.pages.append(self.runner.pages.share(other.pages[chunk]))
                start = max(start, end // CHUNK * CHUNK)
                self._make_room(start, end)
            for chunk in range(start // CHUNK, -(-end // CHUNK)):
                first, last = max(start - chunk * CHUNK, 0), min(end - chunk * CHUNK, CHUNK)
                source, goal = (other.pages[chunk], first), (self.pages[chunk], first)
                copy_slots(other.runner.slots, self.runner.slots, source, goal, last - first)
        self.tokens.extend(tokens)
        return True

    def close(self) -> None:
        self.rollback(0)
        self.runner.closed()

    def make_room(self, start: int, end: int) -> None:
        """Make positions from `start` to `end` - 1 writable: nobody else holds their pages from now on."""
        with self.runner.pages.lock:
            self._make_room(start, end)

    def _make_room(self, start: int, end: int) -> None:
        pages, slots = self.runner.pages, self.runner.slots
        chunk = start // CHUNK
        if start < end and chunk < len(self.pages) and pages.shared(self.pages[chunk]):
            own = pages.take()
            copy_slots(slots, slots, (self.pages[chunk], 0), (own, 0), start % CHUNK)
            pages.give(self.pages[chunk])
            self.pages[chunk] = own
            self._keep(chunk + 1)
        while len(self.pages) * CHUNK < end:
            self.pages.append(pages.take())

    def _keep(self, chunks: int) -> None:
        while len(self.pages) > chunks:
            self.runner.pages.give(self.pages.pop())

    def _slot(self, position: int) -> tuple[int, int]:
        return self.pages[position // CHUNK], position % CHUNK
