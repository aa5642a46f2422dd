"""What a draft source is: a database of earlier text with the slot whose weights it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from hierchat.drafting.growing.layout import HISTORY, SOURCES
from hierchat.drafting.suffix_index import SuffixIndex


@dataclass(frozen=True, slots=True)
class Source:
    """An index under one of the slots of growing.layout: the slot has weights of its own in the acceptance model.
    Several indices may share a slot: they are counted together."""

    slot: int = HISTORY
    index: SuffixIndex = field(default_factory=SuffixIndex)
    text_at: Callable[[int], tuple[int, int]] | None = None
    """Which text a position of the log is in, and how many tokens of it stand before; None where nobody asks."""
    title_at: Callable[[int], str] | None = None
    """What holds a position of a corpus, for a reader."""
    origin: str = ""
    """What the store calls what is found here, where that is not the slot's name."""

    @property
    def name(self) -> str:
        """As the page shows it."""
        return SOURCES[self.slot]

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], slot: int = HISTORY) -> Self:
        """These texts, oldest first."""
        source = cls(slot)
        source.index.extend(texts)
        return source

    def __len__(self) -> int:
        """Tokens held, separators included."""
        return len(self.index)

    def add(self, text: Sequence[int]) -> None:
        """A text is finished."""
        self.index.append(text)

    def runs(self) -> list[tuple[int, int, int, int, int]]:
        """Its rows of Databases.runs, from the oldest to the newest; valid while the index's lock is held, and until
        its arrays are others."""
        tokens, order, starts, sizes = self.index.arrays
        return [
            (self.slot, tokens.ctypes.data, tokens.size, order.ctypes.data + start * order.itemsize, size)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
            if size
        ]
