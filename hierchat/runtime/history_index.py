"""Index the texts of earlier chats for drafting, by user and model, in step with the store."""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.draft_tree import Match
from hierchat.drafting.growing.kernel_arrays import CONTEXT, CORPUS, HISTORY, PROMPTS, SLOT_NAMES
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import BREAK, SortedRun, SuffixIndex
from hierchat.store import Mark, Store, StoreError, SuffixRun, TextKind
from hierchat.store.generated import SELF
from hierchat.store.records import Origin

STORED_TOKENS = 4_096
"""Runs of so many tokens are stored: smaller ones are sorted faster than they are read."""
_TOKEN = np.dtype("<i4")
_BREAK = np.array([BREAK], _TOKEN).tobytes()

_log = logging.getLogger("hierchat.history")


class IndexedTexts:
    """Index earlier messages of one user, model and kind by their suffixes, and know where each one's tokens stand."""

    def __init__(self, store: Store, user_id: int, model_key: str, kind: TextKind) -> None:
        """Read everything that is there, with the orders that were stored."""
        self._store = store
        self._key = (user_id, model_key, kind)
        self._deletions = store.users.deletions(user_id)
        texts, self._mark = store.history.texts(*self._key, Mark())
        log = {text.id: text.tokens for text in texts}
        self._leads = {text.id: text.lead for text in texts}
        parts: list[bytes] = []
        ids: list[int] = []
        holes: list[int] = []
        orders = []
        for run in sorted(store.history.suffix_runs(*self._key), key=lambda run: int(run.texts[0, 0])):
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
        return len(self._places)

    def text_at(self, position: int) -> tuple[int, int]:
        """Find the message at a position of the log, and how many of its tokens come before; none in its lead."""
        number = bisect_right(self._starts, position) - 1
        id = self._ids[number]
        return id, max(position - self._starts[number] - self._leads.get(id, 0), 0)

    def follow(self) -> None:
        """Remove from the index what was deleted, and add what is new or came back."""
        deletions = self._store.users.deletions(self._key[0])
        if deletions != self._deletions:
            there = self._store.history.ids(*self._key)
            # What is stored went with the deletion in the same way.
            self.index.remove([self._places.pop(id) for id in self._places.keys() - there])
            self._deletions = deletions
            if not self._places:
                self.index, self._stored = SuffixIndex(), set()
                self._starts, self._ids = [], []
            if there - self._places.keys():  # the mark may lie behind what came back: read all once more
                self._mark = Mark()
        texts, self._mark = self._store.history.texts(*self._key, self._mark)
        found = {text.id: np.frombuffer(text.tokens, _TOKEN) for text in texts}
        self._leads |= {text.id: text.lead for text in texts}
        new = {id: ids for id, ids in found.items() if self._places.get(id, (0, -1))[1] != ids.size}
        if grown := self._places.keys() & new.keys():  # a reply that was continued
            self.index.remove([self._places.pop(id) for id in grown])
        for (id, ids), start in zip(new.items(), self.index.extend(new.values()), strict=True):
            self._places[id] = (start, ids.size)
            self._starts.append(start)
            self._ids.append(id)

    def changed(self, message_id: int) -> None:
        """Mark a reply that was continued, so that the next `follow` reads it again."""
        self._mark = replace(self._mark, message=min(self._mark.message, message_id - 1))

    @property
    def unsaved(self) -> bool:
        with self.index.lock:
            return bool(self._storable(self.index.runs()))

    def save(self) -> None:
        """Store the suffix orders that are not stored yet. From any thread."""
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
        if self._store.history.keep_suffix_runs(*self._key, runs, deletions=deletions):
            self._stored |= {(run.start, run.length) for run, _ in found}

    def _storable(self, runs: Iterable[SortedRun]) -> list[SortedRun]:
        return [
            run
            for run in runs
            if run.length >= STORED_TOKENS and run.size and (run.start, run.length) not in self._stored
        ]


def _stored(run: SortedRun, order: NDArray[np.int32], places: list[tuple[int, int, int]]) -> SuffixRun:
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


TokenizeText = Callable[[str], Sequence[int]]

AT_ONCE = 20_000
"""Characters that are tokenised before a reply; more wait for the thread."""
CLOSE_SECONDS = 5.0
_BATCH = 64


class UserHistory:
    """Index the history of one user and model: what it wrote, imported or for itself, too, and what the user wrote."""

    def __init__(self, store: Store, user_id: int, model_key: str) -> None:
        self._store = store
        self._key = (user_id, model_key)
        self._tokenised = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        kinds: tuple[TextKind, ...] = ("written", "asked", "self")
        self._all = [IndexedTexts(store, user_id, model_key, kind) for kind in kinds]
        self.written, self.asked, self.by_itself = self._all

    @property
    def sources(self) -> list[Source]:
        return [
            Source(HISTORY, self.written.index, self.written.text_at),
            Source(PROMPTS, self.asked.index, self.asked.text_at),
            Source(HISTORY, self.by_itself.index, origin=SELF),
        ]

    def follow(self, tokenize: TokenizeText | None, before: int | None = None) -> None:
        """Remove what was deleted, add what is new. Long work is left to a thread."""
        with self._lock:
            more = tokenize is not None and not self._tidying and self._tokenise(tokenize, before, AT_ONCE)
            for texts in self._all:
                texts.follow()
            if not self._tidying and (more or any(texts.unsaved for texts in self._all)):
                self._thread = threading.Thread(
                    target=self._tidy, args=(tokenize if more else None, before), name="history", daemon=True
                )
                self._thread.start()

    def wait(self) -> None:
        """Wait until the threads have nothing left to do."""
        for texts in self._all:
            texts.index.wait()
        if self._thread:
            self._thread.join()

    def close(self) -> None:
        """Stop the threads after what they are at; wait for the one that writes."""
        self._closed.set()
        for texts in self._all:
            texts.index.close()
        if self._thread:
            self._thread.join(CLOSE_SECONDS)

    @property
    def _tidying(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _tidy(self, tokenize: TokenizeText | None, before: int | None) -> None:
        try:
            while tokenize and not self._closed.is_set() and self._tokenise(tokenize, before, None):
                pass
            for texts in self._all:
                texts.index.wait()
                if not self._closed.is_set():
                    texts.save()
        except StoreError as error:
            if not self._closed.is_set():
                _log.warning("The draft index was not stored: %s", error)

    def _tokenise(self, tokenize: TokenizeText, before: int | None, most: int | None) -> bool:
        found = self._store.history.without_tokens(*self._key, self._tokenised, before, _BATCH)
        texts: list[tuple[int, str]] = []
        for id, text in found:
            if most is not None and len(text) > most:
                break
            texts.append((id, text))
            most = None if most is None else most - len(text)
        if texts:
            self._store.history.keep_tokens(self._key[1], ((id, tokenize(text)) for id, text in texts))
            self._tokenised = texts[-1][0]
        more = len(texts) < len(found) or len(found) == _BATCH
        if not more and before is not None:  # all that came before it was looked through
            self._tokenised = max(self._tokenised, before - 1)
        return more


class Histories:
    """Hold histories by user and model. `follow` removes what was deleted, as the next reply does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[int, str], UserHistory] = {}

    def held(
        self, user_id: int, model_key: str, tokenize: TokenizeText | None = None, before: int | None = None
    ) -> UserHistory:
        """Return the history of all that the store has of this user and model. Without `tokenize`, messages without
        tokens are left out, and so is the message `before`, which is in the context."""
        key = (user_id, model_key)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = UserHistory(self._store, user_id, model_key)
        held.follow(tokenize, before)
        return held

    def read_in(self, user_id: int, model_key: str, tokenize: TokenizeText) -> Iterator[int]:
        """Tokenise all that the user wrote or imported, from any thread; yield how many tokens can draft so far."""
        total = self._store.history.count_tokens(user_id, model_key)
        yield total
        after = 0
        while found := self._store.history.without_tokens(user_id, model_key, after, None, _BATCH):
            texts = [(id, tokenize(text)) for id, text in found]
            self._store.history.keep_tokens(model_key, texts)
            after = found[-1][0]
            total += sum(len(ids) for _, ids in texts)
            yield total

    def changed(self, user_id: int, message_id: int) -> None:
        """Note that a reply of this user was continued."""
        for (user, _), held in list(self._held.items()):
            if user == user_id:
                held.written.changed(message_id)

    def follow(self, user_id: int) -> None:
        """Remove what was deleted of a user's texts. From any thread."""
        for (user, _), held in list(self._held.items()):
            if user == user_id:
                held.follow(None)

    def forget(self, user_id: int) -> None:
        """Drop all histories of a user who is gone from the store."""
        for key in [key for key in list(self._held) if key[0] == user_id]:
            if (held := self._held.pop(key, None)) is not None:
                held.close()

    def close(self) -> None:
        """Stop all threads, before the store is closed. What is not stored is sorted again at the next start."""
        for held in list(self._held.values()):
            held.close()


@dataclass(slots=True)
class DraftOrigins:
    """Finds the messages that drafts came from. `sources`: in the drafter's order; `prompt`: its tokens."""

    sources: list[Source]
    prompt: int

    def of(self, match: Match, chance: float | None) -> Origin:
        """Find the origin of an accepted token, while its reply is written: later the databases hold other texts."""
        if match.slot < 0:
            return Origin(chance=chance)
        found = Origin(SLOT_NAMES[match.slot], match.length, chance)
        if match.position < 0:
            return found
        if match.slot == CONTEXT:
            return Origin(found.slot, match.length, chance, place=match.position - self.prompt)
        source = self.sources[match.database]
        if source.origin:
            return Origin(source.origin, match.length, chance)
        if source.text_at is not None:
            message, place = source.text_at(match.position)
            return Origin(found.slot, match.length, chance, message, place=place)
        if match.slot == CORPUS and source.title_at is not None:
            title = source.title_at(match.position)
            return Origin(found.slot, match.length, chance, corpus=title, place=match.position)
        return found
