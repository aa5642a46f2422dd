"""Index all suffixes of a token log that grows: ten million tokens and more, at eight bytes each and some slack.

The log is in runs, each with an order of its suffixes. A new text is a run of its own. Neighbours of similar size are
merged. So there are only a few runs, each several times the size of the next. Small merges are made at once. Large ones
are made by a thread, which computes beside the lookups and takes the lock to put its result in place."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.growing import kernel
from hierchat.drafting.growing.kernel_arrays import BREAK, Tokens

RATIO = 4
"""A run is merged with the next unless it is so many times as long."""
AT_ONCE = 16_384
"""Tokens that are sorted or merged within a call; more are left to the thread."""
_SPARE = 65_536
"""Tokens for which there is room beyond the half that is added."""

_BREAK = np.array([BREAK], np.int32)
_log = logging.getLogger("hierchat.history")


class Arrays(NamedTuple):
    """Arrays that a lookup reads, valid as long as the index's lock is held."""

    tokens: Tokens
    """Texts, each followed by BREAK."""
    order: Tokens
    """order[starts[r] : starts[r] + sizes[r]]: positions in `tokens`, in the order of run r's suffixes."""
    starts: NDArray[np.int64]
    """Run r covers tokens[starts[r] : starts[r + 1]], the last one all that is left. From the oldest to the newest."""
    sizes: NDArray[np.int64]
    """Less than the run's length, for BREAKs are in no order; 0 where the run waits to be sorted."""


@dataclass(eq=False, slots=True)
class SortedRun:
    """Stretch of the token log, of one or more texts, with one order of their suffixes."""

    start: int
    length: int
    size: int
    waits: bool = False
    """To be sorted."""
    taken: bool = False
    """The thread is at it."""


class SuffixIndex:
    """Texts of tokens and the orders of their suffixes. Hold `lock` while reading the contents of `arrays`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._tokens = np.zeros(_SPARE, np.int32)
        self._order = np.zeros(self._tokens.size, np.int32)
        self._length = 0
        self._runs: list[SortedRun] = []
        self._removals = 0  # by which the thread finds its result outdated
        self._worker: threading.Thread | None = None
        self._closed = False
        self._publish()

    @classmethod
    def from_sorted(cls, tokens: Tokens, order: Tokens) -> Self:
        """Lay one run over arrays that stay where they are, such as a mapped file's: nothing can come or go."""
        index = cls()
        index._tokens, index._order, index._length = tokens, order, tokens.size
        index._runs = [SortedRun(0, tokens.size, order.size)]
        index._publish()
        return index

    def __len__(self) -> int:
        """Count the tokens of the log, BREAKs and what was removed included."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Return the bytes of the log and its orders, the room to grow included."""
        return self._tokens.nbytes + self._order.nbytes

    def append(self, text: Sequence[int] | Tokens) -> int:
        """Add a text; return the position of its first token."""
        return self.extend([text])[0]

    def extend(self, texts: Iterable[Sequence[int] | Tokens]) -> list[int]:
        """Add texts as one run; return the positions of their first tokens."""
        parts: list[Tokens] = []
        for text in texts:
            parts += (np.asarray(text, np.int32), _BREAK)
        if not parts:
            return []
        with self.lock:
            start = self._length
            self._add(np.concatenate(parts))
            self._publish()
            if self._worker is None and not self._closed and self._work() is not None:
                self._worker = threading.Thread(target=self._run, name="suffix-index", daemon=True)
                self._worker.start()
        ends = np.cumsum([len(text) + 1 for text in parts[::2]]) + start
        return [start, *ends[:-1].tolist()]

    def remove(self, texts: Iterable[tuple[int, int]]) -> None:
        """Forget texts, each given by its position and length: in memory their tokens are gone when this returns."""
        with self.lock:
            ends = [run.start + run.length for run in self._runs]
            touched = set()
            for start, length in texts:
                self._tokens[start : start + length] = BREAK
                touched.add(int(np.searchsorted(ends, start, side="right")))
            for run in (self._runs[number] for number in touched):
                run.size = drop_breaks(self._tokens, self._order[run.start : run.start + run.size])
            self._removals += 1
            self._publish()

    def wait(self) -> None:
        while worker := self._worker:
            worker.join()

    def close(self) -> None:
        with self.lock:
            self._closed = True

    def _publish(self) -> None:
        self.arrays = Arrays(
            self._tokens[: self._length],
            self._order[: self._length],
            np.array([run.start for run in self._runs], np.int64),
            np.array([run.size for run in self._runs], np.int64),
        )

    def _add(self, tokens: Tokens) -> None:
        start, end = self._length, self._length + tokens.size
        if end > self._tokens.size:
            self._tokens, self._order = (_roomier(old, start, end) for old in (self._tokens, self._order))
        self._tokens[start:end] = tokens
        run = SortedRun(start, tokens.size, 0, waits=tokens.size > AT_ONCE)
        if not run.waits:
            self._put(run, suffix_order(self._tokens[start:end]) + np.int32(start))
        self._runs.append(run)
        self._length = end
        while (pair := self._pair(len(self._runs) - 2)) and pair[0].length + pair[1].length <= AT_ONCE:
            older, newer = pair
            order = merged(self._tokens[:end], self._sorted(older), self._sorted(newer))
            self._join(older, newer, order)

    def _pair(self, number: int) -> tuple[SortedRun, SortedRun] | None:
        if number < 0:
            return None
        older, newer = self._runs[number : number + 2]
        if older.length >= RATIO * newer.length or any(run.waits or run.taken for run in (older, newer)):
            return None
        return older, newer

    def _sorted(self, run: SortedRun) -> Tokens:
        return self._order[run.start : run.start + run.size]

    def _put(self, run: SortedRun, order: Tokens) -> None:
        run.waits, run.size = False, order.size
        self._order[run.start : run.start + run.size] = order

    def _join(self, older: SortedRun, newer: SortedRun, order: Tokens) -> None:
        both = SortedRun(older.start, older.length + newer.length, 0)
        self._put(both, order)
        number = self._runs.index(older)
        self._runs[number : number + 2] = [both]

    # The thread. It takes work under the lock, computes without, and puts the result in place under the lock again,
    # unless what it started from has changed: then it begins anew.

    def _work(self) -> tuple[SortedRun, ...] | None:
        """Choose a run to be sorted, or two to be merged; None: nothing is to do."""
        for run in self._runs:
            if run.waits:
                return (run,)
        return next(filter(None, map(self._pair, range(len(self._runs) - 2, -1, -1))), None)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self.lock:
                self._worker = None
                for run in self._runs:
                    run.taken = False
            if not isinstance(error, MemoryError):
                raise
            _log.warning("Too little memory to tidy up the history's index: it goes on with more runs.")

    def _step(self) -> bool:
        with self.lock:
            runs = None if self._closed else self._work()
            if runs is None:
                self._worker = None
                return False
            for run in runs:
                run.taken = True
            removals, tokens = self._removals, self._tokens[: self._length]
            orders = [self._sorted(run) for run in runs]
        if len(runs) == 1:
            # A copy: what is removed meanwhile must not change under the sorting.
            order = suffix_order(tokens[runs[0].start : runs[0].start + runs[0].length].copy())
            order += np.int32(runs[0].start)
        else:
            order = merged(tokens, *orders)
        with self.lock:
            for run in runs:
                run.taken = False
            if removals != self._removals:
                return True
            match runs:
                case (run,):
                    self._put(run, order)
                case (older, newer):
                    self._join(older, newer, order)
            self._publish()
        return True


def _roomier(old: Tokens, used: int, length: int) -> Tokens:
    new = np.zeros(length + length // 2 + _SPARE, np.int32)
    new[:used] = old[:used]
    return new


# Orders of suffixes: lexicographic by the tokens that follow, DEPTH tokens deep. A BREAK, or the end of the log, ends a
# comparison, and what ends comes before what goes on. Suffixes that are equal so far stand by position, the older
# first. DEPTH bounds each comparison, so that a text which repeats itself a hundred thousand times costs no more than
# another.

DEPTH = 64
_FEW = 10
"""Up to here insertion is faster than partition."""


def suffix_order(tokens: np.ndarray) -> np.ndarray:
    """Return the positions (int32) of all that is no BREAK in `tokens` (int32), in the order of their suffixes."""
    if tokens.size and tokens.min() < BREAK:
        raise ValueError("a token id is negative")
    # One kind of array: for those that cannot be written all would be compiled a second time.
    tokens = np.require(tokens, requirements=["C", "W"])
    most = int(tokens.max(initial=0))
    # Counting how often each token occurs pays where there are more tokens than kinds of them.
    return ordered(tokens, most if most < tokens.size else 0)


@kernel
def less(tokens: np.ndarray, a: int, b: int, depth: int) -> bool:
    """Tell whether the suffix at `a` comes before the one at `b`; the first `depth` tokens are known to be equal."""
    end = tokens.size
    for d in range(depth, DEPTH):
        x = tokens[a + d] if a + d < end else BREAK
        y = tokens[b + d] if b + d < end else BREAK
        if x != y:
            return x < y
        if x == BREAK:
            break
    return a < b


@kernel
def ordered(tokens: np.ndarray, kinds: int) -> np.ndarray:
    """Sort `tokens`. `kinds`: the largest token, to put them into a bucket for each; 0: into one for all."""
    firsts = np.zeros(kinds + 2, np.int64)
    for token in tokens:
        if token != BREAK:
            firsts[(token if kinds else 0) + 1] += 1
    for kind in range(kinds + 1):
        firsts[kind + 1] += firsts[kind]
    order = np.empty(firsts[kinds + 1], np.int32)
    ends = firsts.copy()
    for position in range(tokens.size):
        token = tokens[position]
        if token != BREAK:
            kind = token if kinds else 0
            order[ends[kind]] = position
            ends[kind] += 1
    for kind in range(kinds + 1):
        sort_bucket(tokens, order[firsts[kind] : firsts[kind + 1]], 1 if kinds else 0)
    return order


@kernel
def put(parts: np.ndarray, at: int, low: int, high: int, depth: int, keyed: int) -> None:
    """Write one row of parts. Number by number: a tuple put into a row takes two seconds to compile."""
    parts[at, 0] = low
    parts[at, 1] = high
    parts[at, 2] = depth
    parts[at, 3] = keyed


@kernel
def sort_bucket(tokens: np.ndarray, order: np.ndarray, depth: int) -> None:
    """Sort positions whose first `depth` tokens are equal: quicksort in three parts, token by token."""
    end = tokens.size
    keys = np.empty(order.size, np.int32)
    # From, to, tokens known to be equal, whether the keys are those of this depth
    parts = np.empty((128, 4), np.int64)
    put(parts, 0, 0, order.size, depth, 0)
    top = 1
    while top:
        top -= 1
        low, high, depth, keyed = parts[top]
        if high - low <= _FEW:
            for i in range(low + 1, high):
                moving = order[i]
                j = i
                while j > low and less(tokens, moving, order[j - 1], depth):
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = moving
            continue
        if not keyed:
            for i in range(low, high):
                at = order[i] + depth
                # Beyond DEPTH the position decides.
                keys[i] = order[i] if depth >= DEPTH else tokens[at] if at < end else BREAK
        a, b, c = keys[low + (high - low) // 4], keys[(low + high) // 2], keys[high - 1 - (high - low) // 4]
        pivot = max(min(a, b), min(max(a, b), c))
        smaller, i, larger = low, low, high
        while i < larger:
            key = keys[i]
            if key < pivot:
                keys[i], keys[smaller] = keys[smaller], key
                order[i], order[smaller] = order[smaller], order[i]
                smaller += 1
                i += 1
            elif key > pivot:
                larger -= 1
                keys[i], keys[larger] = keys[larger], key
                order[i], order[larger] = order[larger], order[i]
            else:
                i += 1
        first = top
        put(parts, top, low, smaller, depth, 1)
        put(parts, top + 1, larger, high, depth, 1)
        # Texts that have ended alike differ in their position only.
        put(parts, top + 2, smaller, larger, DEPTH if pivot == BREAK else depth + 1, 0)
        top += 3
        # The largest part waits below: so few ever wait.
        for other in range(first + 1, top):
            if parts[other, 1] - parts[other, 0] > parts[first, 1] - parts[first, 0]:
                for column in range(4):
                    parts[first, column], parts[other, column] = parts[other, column], parts[first, column]


@kernel
def merged(tokens: np.ndarray, older: np.ndarray, newer: np.ndarray) -> np.ndarray:
    """Merge the suffix orders of an older and a newer run into one."""
    order = np.empty(older.size + newer.size, np.int32)
    i = j = 0
    for k in range(order.size):
        if j == newer.size or (i < older.size and less(tokens, older[i], newer[j], 0)):
            order[k] = older[i]
            i += 1
        else:
            order[k] = newer[j]
            j += 1
    return order


@kernel
def drop_breaks(tokens: np.ndarray, order: np.ndarray) -> int:
    """Close the gaps that BREAKs written over tokens leave in `order`; return how many remain, at its beginning."""
    kept = 0
    for position in order:
        if tokens[position] != BREAK:
            order[kept] = position
            kept += 1
    return kept
