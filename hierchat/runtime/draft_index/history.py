"""What earlier chats left behind for drafting: the texts of a user and a model, kept in step with the store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from hierchat.drafting.growing.layout import HISTORY, PROMPTS
from hierchat.drafting.source import Source
from hierchat.runtime.draft_index.texts import IndexedTexts
from hierchat.store import Store, StoreError
from hierchat.store.self_texts import SELF

Tokenize = Callable[[str], Sequence[int]]

AT_ONCE = 20_000
"""Characters that are tokenised before a reply; more wait for the thread."""
CLOSE_SECONDS = 5.0
_BATCH = 64

_log = logging.getLogger("hierchat.history")


class Held:
    """Of one user and model: what the model wrote, imported replies too, what it wrote for itself, and what the user
    wrote."""

    def __init__(self, store: Store, user_id: int, model_key: str) -> None:
        self._store = store
        self._key = (user_id, model_key)
        self._tokenised = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self.written = IndexedTexts(store, user_id, model_key, "written")
        self.asked = IndexedTexts(store, user_id, model_key, "asked")
        self.by_itself = IndexedTexts(store, user_id, model_key, "self")
        self._all = (self.written, self.asked, self.by_itself)

    @property
    def sources(self) -> list[Source]:
        """For the drafter."""
        return [
            Source(HISTORY, self.written.index, self.written.text_at),
            Source(PROMPTS, self.asked.index, self.asked.text_at),
            Source(HISTORY, self.by_itself.index, origin=SELF),
        ]

    def follow(self, tokenize: Tokenize | None, before: int | None = None) -> None:
        """Take out what was deleted, add what is new. Long work is left to a thread."""
        more = tokenize is not None and not self._tidying and self._tokenise(tokenize, before, AT_ONCE)
        for texts in self._all:
            texts.follow()
        if not self._tidying and (more or any(texts.unsaved for texts in self._all)):
            self._thread = threading.Thread(
                target=self._tidy, args=(tokenize if more else None, before), name="history", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Until the threads have nothing left to do."""
        for texts in self._all:
            texts.index.wait()
        if self._thread:
            self._thread.join()

    def close(self) -> None:
        """Let the threads end after what they are at; wait for the one that writes."""
        self._closed.set()
        for texts in self._all:
            texts.index.close()
        if self._thread:
            self._thread.join(CLOSE_SECONDS)

    @property
    def _tidying(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _tidy(self, tokenize: Tokenize | None, before: int | None) -> None:
        """Tokenise what is left, for the next reply; store the orders of what there is."""
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

    def _tokenise(self, tokenize: Tokenize, before: int | None, most: int | None) -> bool:
        """Keep the tokens of texts that have none yet, up to `most` characters, if any; whether there may be more."""
        found = self._store.texts_without_tokens(*self._key, self._tokenised, before, _BATCH)
        texts: list[tuple[int, str]] = []
        for id, text in found:
            if most is not None and len(text) > most:
                break
            texts.append((id, text))
            most = None if most is None else most - len(text)
        if texts:
            self._store.keep_tokens(self._key[1], ((id, tokenize(text)) for id, text in texts))
            self._tokenised = texts[-1][0]
        more = len(texts) < len(found) or len(found) == _BATCH
        if not more and before is not None:  # all that came before it was looked through
            self._tokenised = max(self._tokenised, before - 1)
        return more


class Histories:
    """One history per user and model. What was deleted is gone at the next reply."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[int, str], Held] = {}

    def held(
        self, user_id: int, model_key: str, tokenize: Tokenize | None = None, before: int | None = None
    ) -> Held:
        """Everything in the store of this user and model, and nothing else. Without `tokenize`, messages that no
        model wrote are left out until their tokens are known. The message `before` is to be answered now: it belongs to
        the context, and is left out too, with any after it."""
        key = (user_id, model_key)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Held(self._store, user_id, model_key)
        held.follow(tokenize, before)
        return held

    def nbytes(self, user_id: int) -> int:
        """What this user's take in memory."""
        return sum(
            source.index.nbytes
            for (user, _), held in list(self._held.items())
            for source in held.sources
            if user == user_id
        )

    def read_in(self, user_id: int, model_key: str, tokenize: Tokenize) -> Iterator[int]:
        """Tokenise all that the user wrote or imported, in place of the thread that would do it beside the next reply;
        yields how many tokens of this user's can draft so far, in the end all of them. From any thread."""
        total = self._store.drafting_tokens(user_id, model_key)
        yield total
        after = 0
        while found := self._store.texts_without_tokens(user_id, model_key, after, None, _BATCH):
            texts = [(id, tokenize(text)) for id, text in found]
            self._store.keep_tokens(model_key, texts)
            after = found[-1][0]
            total += sum(len(ids) for _, ids in texts)
            yield total

    def changed(self, user_id: int, message_id: int) -> None:
        """A reply of this user was continued."""
        for (user, _), held in list(self._held.items()):
            if user == user_id:
                held.written.changed(message_id)

    def forget(self, user_id: int) -> None:
        """All of a user's, who is gone from the store."""
        for key in [key for key in list(self._held) if key[0] == user_id]:
            if (held := self._held.pop(key, None)) is not None:
                held.close()

    def close(self) -> None:
        """Before the store is closed. What is not stored is sorted again at the next start."""
        for held in list(self._held.values()):
            held.close()
