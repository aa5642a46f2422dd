"""Lend pages of key-value slots to the texts of a runner. Texts that begin alike hold the same pages."""

from __future__ import annotations

import threading
from abc import abstractmethod

from hierchat.engine.runner import CachedSequence, Runner
from hierchat.models.device_memory import free_memory

SHARE = 0.5
"""Of the free memory, at most, for slots beyond those of one sequence."""


def texts_that_fit(wanted: int, size: int, device: str) -> int:
    """Return how many texts of `size` bytes each fit into SHARE of a device's free memory: 1 to `wanted`."""
    return min(wanted, max(1, int(SHARE * free_memory(device) / size)))


class Pages:
    """Lends pages of key-value slots, each of `size` positions; texts share pages. Callers hold `lock`."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.lock = threading.RLock()
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


class PagedSequence(CachedSequence):
    """Keep the pages of one text: taken as it grows, given back when it is rolled back."""

    def __init__(self, runner: Runner, lender: Pages) -> None:
        super().__init__(runner)
        self._lender = lender
        self.pages: list[int] = []
        """The page that holds each chunk of positions; pages of committed chunks may be held by others, too."""

    @abstractmethod
    def copy_page(self, source: int, goal: int, count: int) -> None:
        """Copy the first `count` slots of a page to another page."""

    @abstractmethod
    def wipe_page(self, page: int, first: int = 0) -> None:
        """Overwrite the slots of a page from `first` on."""

    def rollback(self, length: int) -> None:
        del self.tokens[length:]
        with self._lender.lock:
            self._keep(-(-length // self._lender.size))

    def wipe(self) -> None:
        lender = self._lender
        with lender.lock:
            for page in lender.soiled():
                self.wipe_page(page)
            last, first = divmod(len(self.tokens), lender.size)
            for page in self.pages[last:]:
                if not lender.shared(page):  # else it holds another text
                    self.wipe_page(page, first)
                first = 0

    def make_room(self, start: int, end: int) -> None:
        """Make positions from `start` to `end` - 1 writable: nobody else holds their pages from now on."""
        lender, chunk = self._lender, start // self._lender.size
        with lender.lock:
            if start < end and chunk < len(self.pages) and lender.shared(self.pages[chunk]):
                own = lender.take()
                self.copy_page(self.pages[chunk], own, start % lender.size)
                lender.give(self.pages[chunk])
                self.pages[chunk] = own
                self._keep(chunk + 1)
            while len(self.pages) * lender.size < end:
                self.pages.append(lender.take())

    def _share(self, other: PagedSequence, start: int, end: int) -> int:
        """Hold the pages of `other`, a sequence of the same runner, that are full before `end`, in place of the own
        from position `start` on; return the position behind them, at least `start`. Callers hold the lock."""
        size = self._lender.size
        for chunk in range(start // size, end // size):
            self._keep(chunk)
            self.pages.append(self._lender.share(other.pages[chunk]))
        return max(start, end // size * size)

    def _keep(self, chunks: int) -> None:
        while len(self.pages) > chunks:
            self._lender.give(self.pages.pop())
