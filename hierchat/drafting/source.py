"""What a draft source is: a database of earlier text with the slot whose weights it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.kernel_arrays import HISTORY, Tokens
from hierchat.drafting.suffix_index import SuffixIndex


@dataclass(frozen=True, slots=True)
class Source:
    """An index under one of the slots of growing.kernel_arrays, each with weights of its own in the acceptance model.
    Several indices may share a slot: they are counted together."""

    slot: int = HISTORY
    index: SuffixIndex = field(default_factory=SuffixIndex)
    text_at: Callable[[int], tuple[int, int]] | None = None
    """Which text a position of the log is in, and how many tokens of it stand before; None where nobody asks."""
    title_at: Callable[[int], str] | None = None
    """What holds a position of a corpus, for a reader."""
    origin: str = ""
    """What the store calls what is found here, where that is not the slot's name."""

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], slot: int = HISTORY) -> Self:
        """Make a source of these texts, oldest first."""
        source = cls(slot)
        source.index.extend(texts)
        return source

    def __len__(self) -> int:
        """Tokens held, separators included."""
        return len(self.index)

    def add(self, text: Sequence[int]) -> None:
        """Add a finished text."""
        self.index.append(text)

    def runs(self) -> list[tuple[int, int, int, int, int]]:
        """Return its rows of Databases.runs, from the oldest to the newest; valid while the index's lock is held, and
        until its arrays are others."""
        tokens, order, starts, sizes = self.index.arrays
        return [
            (self.slot, tokens.ctypes.data, tokens.size, order.ctypes.data + start * order.itemsize, size)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
            if size
        ]


_FIRST_ROOM = 4096


class Context:
    """This conversation, prompt and reply so far, with, for every position, the occurrence before it of the same token:
    appending is constant time."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        room = max(_FIRST_ROOM, 2 * len(text))
        self._tokens = np.empty(room, np.int32)
        self._previous = np.empty(room, np.int32)
        self.newest = np.full(1, -1, np.int32)
        """Where each token stood last, -1: nowhere."""
        self.length = 0
        self.append(text)

    def append(self, text: Sequence[int]) -> None:
        """Add to the text."""
        new = np.array(text, np.int32)
        if new.min(initial=0) < 0:
            raise ValueError("a token id is negative")
        end = self.length + new.size
        if end > self._tokens.size:
            self._tokens = np.concatenate((self._tokens, np.empty(end, np.int32)))
            self._previous = np.concatenate((self._previous, np.empty(end, np.int32)))
        if (largest := int(new.max(initial=0))) >= self.newest.size:
            more = max(largest + 1 - self.newest.size, self.newest.size)
            self.newest = np.concatenate((self.newest, np.full(more, -1, np.int32)))
        _chain(new, self.length, self._tokens, self._previous, self.newest)
        self.length = end

    def rollback(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        if length < self.length:
            _unchain(length, self.length, self._tokens, self._previous, self.newest)
            self.length = length

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self.length]

    def went_on_behind(self, words: Sequence[int]) -> bool:
        """Whether these tokens stand in the text one behind the other, with something behind them."""
        begins = max(self.length - len(words), 0)
        found = np.ones(begins, bool)
        for place, token in enumerate(words):
            found &= self._tokens[place : place + begins] == token
        return bool(found.any())

    @property
    def previous(self) -> Tokens:
        """For every position the occurrence of its token before it, -1: none."""
        return self._previous[: self.length]


@kernel
def _chain(new, length, tokens, previous, newest):  # type: ignore[no-untyped-def]
    for i in range(len(new)):
        token = new[i]
        tokens[length + i] = token
        previous[length + i] = newest[token]
        newest[token] = length + i


@kernel
def _unchain(length, end, tokens, previous, newest):  # type: ignore[no-untyped-def]
    for i in range(end - 1, length - 1, -1):
        newest[tokens[i]] = previous[i]
