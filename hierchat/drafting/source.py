"""Hold what drafts are looked up in: indices of earlier texts, this conversation, and the target's own top tokens."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.growing.kernel_arrays import HISTORY, Tokens
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.jit import Kernels

kernel = Kernels(__file__)


@dataclass(frozen=True, slots=True)
class Source:
    """Index of texts in a slot of growing.kernel_arrays. Indices that share a slot are counted together."""

    slot: int = HISTORY
    index: SuffixIndex = field(default_factory=SuffixIndex)
    text_at: Callable[[int], tuple[int, int]] | None = None
    """Which text a position of the log is in, and how many tokens of it stand before; None where nobody asks."""
    title: str = ""
    """Name of a corpus, for a reader."""
    origin: str = ""
    """Name in the store of what is found here, if it is not the slot's (DOCUMENTS)."""

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], slot: int = HISTORY) -> Self:
        """Make a source of these texts, oldest first."""
        source = cls(slot)
        source.index.extend(texts)
        return source

    def __len__(self) -> int:
        """Count the tokens held, separators included."""
        return len(self.index)

    def add(self, text: Sequence[int]) -> None:
        self.index.append(text)

    def runs(self) -> list[tuple[int, int, int, int, int]]:
        """Return its rows of Databases.runs, oldest to newest; valid while the index's lock is held."""
        tokens, order, starts, sizes = self.index.arrays
        return [
            (self.slot, tokens.ctypes.data, tokens.size, order.ctypes.data + start * order.itemsize, size)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
            if size
        ]


_FIRST_ROOM = 4096


class Context:
    """This conversation, and for every position the previous occurrence of its token: appending takes constant time."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        room = max(_FIRST_ROOM, 2 * len(text))
        self._tokens = np.empty(room, np.int32)
        self._previous = np.empty(room, np.int32)
        self.newest = np.full(1, -1, np.int32)
        """Where each token stood last, -1: nowhere."""
        self.length = 0
        self.append(text)

    def append(self, text: Sequence[int]) -> None:
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

    def repeats(self, count: int) -> bool:
        """Return whether the last `count` tokens occur earlier, too."""
        return bool(_repeats(self.tokens, self._previous, count))

    def rollback(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        if length < self.length:
            _unchain(length, self.length, self._tokens, self._previous, self.newest)
            self.length = length

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self.length]

    @property
    def previous(self) -> Tokens:
        """Return for every position the occurrence of its token before it, -1: none."""
        return self._previous[: self.length]


@kernel
def _chain(new, length, tokens, previous, newest):  # type: ignore[no-untyped-def]
    for i in range(len(new)):
        token = new[i]
        tokens[length + i] = token
        previous[length + i] = newest[token]
        newest[token] = length + i


@kernel
def _repeats(tokens, previous, count):  # type: ignore[no-untyped-def]
    end = len(tokens)
    at = previous[end - 1]
    while at >= count - 1:
        size = 1
        while size < count and tokens[at - size] == tokens[end - 1 - size]:
            size += 1
        if size == count:
            return True
        at = previous[at]
    return False


@kernel
def _unchain(length, end, tokens, previous, newest):  # type: ignore[no-untyped-def]
    for i in range(end - 1, length - 1, -1):
        newest[tokens[i]] = previous[i]


TOP = 8
"""Successors held, the likeliest first; -1 where there is none."""
WAYS = 4
"""Slots that a pair may lie in, the one updated last in front: a fifth pair drives out the oldest."""
SET_BITS = 14
PAIRS = WAYS << SET_BITS

_HEADER = struct.Struct("<4sBI")
_SIZES = struct.Struct("<II")
_MAGIC, _VERSION = b"HCsu", 1
_INT, _LONG = np.dtype("<i4"), np.dtype("<i8")


class Successors:
    """Hold the target's top tokens behind every token and every pair of tokens, from the last time that these occurred:
    the tables of one user and model. After Luo et al., "Turning Trash into Treasure: ... Token Recycling", 2024; pairs
    are ours. `single` [tokens, TOP] grows to the largest token seen. `pair_keys` [PAIRS] (see pair_key, -1: empty) and
    `pairs` [PAIRS, TOP] keep their place in memory; find_pair says where a pair lies."""

    def __init__(self) -> None:
        self.single: NDArray[np.int32] = np.full((0, TOP), -1, np.int32)
        self.pair_keys: NDArray[np.int64] = np.full(PAIRS, -1, np.int64)
        self.pairs: NDArray[np.int32] = np.full((PAIRS, TOP), -1, np.int32)
        self.update([-1], np.empty((0, TOP), np.int32))  # compiled now, and not in the first step

    def update(self, path: Sequence[int], top: NDArray[np.int32]) -> None:
        """Note that `top[i]` [TOP] may follow path[i + 1] after path[i] (-1: after nothing)."""
        if top.shape != (len(path) - 1, TOP):
            raise ValueError(f"{len(path)} tokens need [{len(path) - 1}, {TOP}] successors, not {top.shape}.")
        if (largest := max(path)) >= len(self.single):
            more = max(largest + 1 - len(self.single), len(self.single))
            self.single = np.concatenate((self.single, np.full((more, TOP), -1, np.int32)))
        _update(np.array(path, np.int64), top, self.single, self.pair_keys, self.pairs)

    def to_bytes(self) -> bytes:
        """Compress the tables to bytes."""
        single = self.single
        tokens = np.flatnonzero(single[:, 0] >= 0)
        slots = np.flatnonzero(self.pair_keys >= 0)
        parts = (
            tokens.astype(_INT),
            single[tokens].astype(_INT),
            slots.astype(_INT),
            self.pair_keys[slots].astype(_LONG),
            self.pairs[slots].astype(_INT),
        )
        payload = zlib.compress(
            _SIZES.pack(len(tokens), len(slots)) + b"".join(part.tobytes() for part in parts), 1
        )
        return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(payload)) + payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the tables that to_bytes wrote. Raises ValueError where they are damaged or of another version."""
        if len(data) < _HEADER.size or _HEADER.unpack_from(data)[:2] != (_MAGIC, _VERSION):
            raise ValueError("Stored successors are of another version, or cut off.")
        if zlib.crc32(data[_HEADER.size :]) != _HEADER.unpack_from(data)[2]:
            raise ValueError("Stored successors are damaged.")
        payload = zlib.decompress(data[_HEADER.size :])
        count, filled = _SIZES.unpack_from(payload)
        at = _SIZES.size

        def part(kind: np.dtype[Any], *shape: int) -> NDArray[Any]:
            nonlocal at
            found = np.frombuffer(payload, kind, int(np.prod(shape)), at).reshape(shape)
            at += found.nbytes
            return found

        made = cls()
        tokens, rows = part(_INT, count), part(_INT, count, TOP)
        made.single = np.full((int(tokens.max(initial=-1)) + 1, TOP), -1, np.int32)
        made.single[tokens] = rows
        slots = part(_INT, filled)
        made.pair_keys[slots] = part(_LONG, filled)
        made.pairs[slots] = part(_INT, filled, TOP)
        return made


@kernel
def pair_key(previous: Any, token: Any) -> Any:
    """Return the key under which pair_keys holds a pair."""
    return np.int64(previous) << 32 | np.int64(token)


@kernel
def first_slot(key: Any) -> Any:
    """Return the first of the WAYS slots that a pair may lie in."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(64 - SET_BITS)) * WAYS


@kernel
def find_pair(pair_keys: Any, previous: Any, token: Any) -> Any:
    """Find the slot of a pair; -1: it has none."""
    key = pair_key(previous, token)
    begin = first_slot(key)
    for slot in range(begin, begin + WAYS):
        if pair_keys[slot] == key:
            return slot
    return -1


@kernel
def put_row(goal: Any, at: Any, source: Any, row: Any) -> None:
    """Copy one row into another table. Number by number: assigning the row takes two seconds longer to compile."""
    for rank in range(source.shape[1]):
        goal[at, rank] = source[row, rank]


@kernel
def _update(path: Any, top: Any, single: Any, pair_keys: Any, pairs: Any) -> None:
    for row in range(len(top)):
        previous, token = path[row], path[row + 1]
        put_row(single, token, top, row)
        if previous < 0:
            continue
        key = pair_key(previous, token)
        begin = first_slot(key)
        slot = begin
        while slot < begin + WAYS - 1 and pair_keys[slot] != key:
            slot += 1
        while slot > begin:
            pair_keys[slot] = pair_keys[slot - 1]
            put_row(pairs, slot, pairs, slot - 1)
            slot -= 1
        pair_keys[begin] = key
        put_row(pairs, begin, top, row)
