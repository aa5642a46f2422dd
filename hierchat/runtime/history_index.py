"""Index the texts of earlier chats for drafting, by user and model, in step with the store."""

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hierchat.drafting.draft_tree import Match
from hierchat.drafting.growing.kernel_arrays import CONTEXT, CORPUS, HISTORY, PROMPTS, SLOT_NAMES
from hierchat.drafting.source import Source
from hierchat.drafting.suffix_index import SuffixIndex
from hierchat.store import Mark, Store, StoreError, TextKind
from hierchat.store.records import Origin
from hierchat.store.replies import TOKEN

_log = logging.getLogger("hierchat.history")


class IndexedTexts:
    """Index earlier messages of one user, model and kind by their suffixes, and know where each one's tokens stand."""

    def __init__(self, store: Store, user_id: int, model_key: str, kind: TextKind) -> None:
        """Read everything that is there; a thread sorts what is long."""
        self._store = store
        self._key = (user_id, model_key, kind)
        self._deletions = store.users.deletions(user_id)
        self.index = SuffixIndex()
        self._places: dict[int, tuple[int, int]] = {}
        self._leads: dict[int, int] = {}
        self._starts: list[int] = []
        """Position in the log at which each text begins, deleted texts included."""
        self._ids: list[int] = []
        """Id of each of these texts."""
        self._mark = Mark()
        self._add_new()

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
            self.index.remove([self._places.pop(id) for id in self._places.keys() - there])
            self._deletions = deletions
            if not self._places:
                self.index = SuffixIndex()
                self._starts, self._ids = [], []
            if there - self._places.keys():  # the mark may lie behind what came back: read all once more
                self._mark = Mark()
        self._add_new()

    def _add_new(self) -> None:
        texts, self._mark = self._store.history.texts(*self._key, self._mark)
        found = {text.id: np.frombuffer(text.tokens, TOKEN) for text in texts}
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


TokenizeText = Callable[[str], Sequence[int]]

AT_ONCE = 20_000
"""Characters that are tokenised before a reply; more wait for the thread."""
CLOSE_SECONDS = 5.0
_BATCH = 64


class UserHistory:
    """Index the history of one user and model: what it wrote, imported replies, too, and what the user wrote."""

    def __init__(self, store: Store, user_id: int, model_key: str) -> None:
        self._store = store
        self._key = (user_id, model_key)
        self._tokenised = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        kinds: tuple[TextKind, ...] = ("written", "asked")
        self._all = [IndexedTexts(store, user_id, model_key, kind) for kind in kinds]
        self.written, self.asked = self._all

    @property
    def sources(self) -> list[Source]:
        return [
            Source(HISTORY, self.written.index, self.written.text_at),
            Source(PROMPTS, self.asked.index, self.asked.text_at),
        ]

    def follow(self, tokenize: TokenizeText | None, before: int | None = None) -> None:
        """Remove what was deleted, add what is new. Long work is left to a thread."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            more = tokenize is not None and not busy and self._tokenise(tokenize, before, AT_ONCE)
            for texts in self._all:
                texts.follow()
            if more:
                self._thread = threading.Thread(
                    target=self._tokenise_rest, args=(tokenize, before), name="history", daemon=True
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

    def _tokenise_rest(self, tokenize: TokenizeText, before: int | None) -> None:
        try:
            while not self._closed.is_set() and self._tokenise(tokenize, before, None):
                pass
        except StoreError as error:
            if not self._closed.is_set():
                _log.warning("Earlier messages could not be read to draft from: %s", error)

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
        """Stop all threads, before the store is closed."""
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
        if match.slot == CORPUS:
            return Origin(found.slot, match.length, chance, corpus=source.title, place=match.position)
        return found
