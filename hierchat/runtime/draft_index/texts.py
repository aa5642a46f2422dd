"""Earlier messages of one user, model and kind in one suffix index, kept in step with the store."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.suffix_index import BREAK, Run, SuffixIndex
from hierchat.store import Mark, Store, SuffixRun, TextKind

STORED_TOKENS = 4_096
"""Runs of so many tokens are stored: smaller ones are sorted faster than they are read."""
_TOKEN = np.dtype("<i4")
_BREAK = np.array([BREAK], _TOKEN).tobytes()

_log = logging.getLogger("hierchat.history")


class IndexedTexts:
    """The index and where each message's tokens stand in it."""

    def __init__(self, store: Store, user_id: int, model_key: str, kind: TextKind) -> None:
        """Everything that is there, with the orders that were stored."""
        self._store = store
        self._key = (user_id, model_key, kind)
        self._deletions = store.deletions(user_id)
        texts, self._mark = store.drafting_texts(*self._key, Mark())
        log = dict(texts)
        parts: list[bytes] = []
        ids: list[int] = []
        holes: list[int] = []
        orders = []
        for run in sorted(store.suffix_runs(*self._key), key=lambda run: int(run.texts[0, 0])):
            covered = run.texts.tolist()
            if any(id in log and len(log[id]) != size * _TOKEN.itemsize for id, size in covered):
                _log.warning("A stored part of the draft index did not fit its texts and is made anew.")
                continue
            # A text that is gone leaves a hole, which is closed below: so does one that another run brought.
            pieces = [log.pop(id, None) for id, _ in covered]
            holes += [len(ids) + at for at, piece in enumerate(pieces) if piece is None]
            parts += [
                _BREAK * size if piece is None else piece
                for piece, (_, size) in zip(pieces, covered, strict=True)
            ]
            ids += [id for id, _ in covered]
            orders.append((run.length, run.order))
        parts += log.values()
        ids += log
        tokens = np.frombuffer(_BREAK.join([*parts, b""]), _TOKEN)
        self.index = SuffixIndex.restored(tokens, orders)
        lengths = [len(part) // _TOKEN.itemsize for part in parts]
        starts = np.cumsum([0, *(length + 1 for length in lengths)])[:-1].tolist()
        places = list(zip(starts, lengths, strict=True))
        if holes:
            self.index.remove(places[at] for at in holes)
        gone = set(holes)
        self._places = {id: places[at] for at, id in enumerate(ids) if at not in gone}
        self._starts, self._ids = starts, ids  # also of texts that are gone, in the order of the log
        stored = zip(np.cumsum([0, *(length for length, _ in orders)]).tolist(), orders, strict=False)
        self._stored = set() if holes else {(start, length) for start, (length, _) in stored}

    def __len__(self) -> int:
        """How many texts."""
        return len(self._places)

    def text_at(self, position: int) -> tuple[int, int]:
        """The message that stands at a position of the log, and how many of its tokens stand before."""
        number = bisect_right(self._starts, position) - 1
        return self._ids[number], position - self._starts[number]

    def follow(self) -> None:
        """Take out what was deleted, add what is new, and what came back."""
        deletions = self._store.deletions(self._key[0])
        if deletions != self._deletions:
            there = self._store.drafting_ids(*self._key)
            # What is stored went with the deletion in the same way.
            self.index.remove([self._places.pop(id) for id in self._places.keys() - there])
            self._deletions = deletions
            if not self._places:
                self.index, self._stored = SuffixIndex(), set()
                self._starts, self._ids = [], []
            if there - self._places.keys():  # the mark may lie behind what came back: read all once more
                self._mark = Mark()
        texts, self._mark = self._store.drafting_texts(*self._key, self._mark)
        found = {id: np.frombuffer(ids, _TOKEN) for id, ids in texts}
        new = {id: ids for id, ids in found.items() if self._places.get(id, (0, -1))[1] != ids.size}
        if grown := self._places.keys() & new.keys():  # a reply that was continued
            self.index.remove([self._places.pop(id) for id in grown])
        for (id, ids), start in zip(new.items(), self.index.extend(new.values()), strict=True):
            self._places[id] = (start, ids.size)
            self._starts.append(start)
            self._ids.append(id)

    def changed(self, message_id: int) -> None:
        """A reply was continued: the next `follow` reads it again."""
        self._mark = replace(self._mark, message=min(self._mark.message, message_id - 1))

    @property
    def unsaved(self) -> bool:
        """Whether there is something that `save` would store."""
        with self.index.lock:
            return bool(self._storable(self.index.runs()))

    def save(self) -> None:
        """Store the orders that are not stored yet. From any thread."""
        deletions, index = self._deletions, self.index
        with index.lock:
            places = sorted((*place, id) for id, place in self._places.copy().items())
            found = [
                (run, index.arrays.order[run.start : run.start + run.size].copy())
                for run in self._storable(index.runs())
            ]
        runs = [_stored(run, order, places) for run, order in found]
        if not all(run.sound for run in runs):  # a text was removed or added while this was made
            return
        if self._store.keep_suffix_runs(*self._key, runs, deletions=deletions):
            self._stored |= {(run.start, run.length) for run, _ in found}

    def _storable(self, runs: Iterable[Run]) -> list[Run]:
        return [
            run
            for run in runs
            if run.length >= STORED_TOKENS and run.size and (run.start, run.length) not in self._stored
        ]


def _stored(run: Run, order: NDArray[np.int32], places: list[tuple[int, int, int]]) -> SuffixRun:
    """A run of the index as it is stored, without the holes that removed texts left."""
    first, last = (
        np.searchsorted([start for start, _, _ in places], edge)
        for edge in (run.start, run.start + run.length)
    )
    inside = np.array(places[first:last], np.int64).reshape(-1, 3)
    order -= np.int32(run.start)
    kept = np.zeros(run.length, np.bool_)
    for start, length, _ in inside.tolist():
        kept[start - run.start : start - run.start + length + 1] = True
    if not kept.all():
        order = (np.cumsum(kept, dtype=np.int32) - 1)[order]
    return SuffixRun(inside[:, [2, 1]], order)
