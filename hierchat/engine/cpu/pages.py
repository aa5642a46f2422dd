"""Pages of key-value slots: each holds one chunk of positions of a text; texts that begin alike hold it together."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hierchat.engine.cpu.memory import KeyValues


class Pages:
    """The pages that are free, and how many texts hold each of the others. `lock` is held by whoever calls a method:
    replies begin and end while others go on."""

    def __init__(self, count: int) -> None:
        self.lock = threading.Lock()
        # The one that was given back last is taken first: its memory is there already.
        self._free = list(reversed(range(count)))
        self._holders = [0] * count

    def take(self) -> int:
        """A page for one text."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """The same page for one more text; none may write to it from now on."""
        self._holders[page] += 1
        return page

    def shared(self, page: int) -> bool:
        """Whether several texts hold it."""
        return self._holders[page] > 1

    @property
    def free(self) -> int:
        """How many are free."""
        return len(self._free)

    def give(self, page: int) -> None:
        """A text does not hold it any more."""
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)


def copy_slots(
    source: Sequence[KeyValues], goal: Sequence[KeyValues], pages: tuple[int, int], first: int, last: int
) -> None:
    """Keys and values of slots first .. last - 1 of a page, in every layer, to the same slots of another page."""
    one, other = pages
    for a, b in zip(source, goal, strict=True):
        b.keys[other, ..., first:last] = a.keys[one, ..., first:last]
        b.key_scales[other, ..., first:last] = a.key_scales[one, ..., first:last]
        b.values[other, ..., first:last, :] = a.values[one, ..., first:last, :]
        b.value_scales[other, ..., first:last] = a.value_scales[one, ..., first:last]


def move_slot(slots: Sequence[KeyValues], source: tuple[int, int], goal: tuple[int, int]) -> None:
    """Keys and values of one slot, in every layer; page and slot of each."""
    (c, t), (d, u) = source, goal
    for kind in slots:
        kind.keys[d, ..., u] = kind.keys[c, ..., t]
        kind.key_scales[d, ..., u] = kind.key_scales[c, ..., t]
        kind.values[d, ..., u, :] = kind.values[c, ..., t, :]
        kind.value_scales[d, ..., u] = kind.value_scales[c, ..., t]
