"""A model that drafts for another: it chooses under the same noise, and rolls back where the other chose otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from hierchat.config import GenerationSettings
from hierchat.drafting.tree import DraftTree
from hierchat.engine.decoding import CHUNK, common_prefix
from hierchat.engine.latency import LatencyCurve
from hierchat.engine.runner import CachedSequence
from hierchat.engine.sampling.sampler import Counts
from hierchat.engine.verify import verify, wait_for

TOGETHER = 16
"""So many tokens that are new to it go into the forward that verifies; more are read before."""


class CachedDraftModel:
    """A hierarchy.level.DraftModel. Its forwards are the fastest, padded or not: no token of a reply depends on them.

    `original`: the target's sequence, where this is a rounded copy of the target. The copy takes over its keys and
    values instead of reading the text again.
    """

    def __init__(
        self,
        name: str,
        sequence: CachedSequence,
        latency: LatencyCurve,
        settings: GenerationSettings,
        stop: threading.Event,
        original: CachedSequence | None = None,
        *,
        user: int | None = None,
        users: dict[str, int | None] | None = None,
    ) -> None:
        """`user`: whose text it is. `users`: by draft model, whose text its slots hold; what is another's there is not
        used: the time that reading takes would tell whether both begin in the same way."""
        self.name = name
        self._sequence = sequence
        self._original = original
        self._latency = latency
        self._settings = settings
        self._stop = stop
        self._user = user
        self._users = {} if users is None else users
        self._text: list[int] = []
        self._counts = Counts()
        self.read_ms = 0.0

    @property
    def length(self) -> int:
        return len(self._text)

    @property
    def room(self) -> int:
        return self._sequence.context_length - len(self._text)

    @property
    def reading_ms(self) -> float:
        """Expected of reading what is not in the slots, were they a chunk's tokens or fewer at a time."""
        if self._original:
            return 0.0
        step_ms = self._latency.step_ms(len(self._text))
        return (len(self._text) - len(self._sequence.tokens)) * step_ms[-1] / len(step_ms)

    def begin(self, text: Sequence[int]) -> None:
        own = self._users.get(self.name, self._user) == self._user
        self._users[self.name] = self._user
        self._sequence.rollback(common_prefix(self._sequence.tokens, text[:-1]) if own else 0)
        self._text = list(text)
        self._counts = Counts(text)

    def verify(self, drafts: DraftTree) -> Sequence[int]:
        self._take_over()
        new = self._text[len(self._sequence.tokens) :]
        if len(new) > TOGETHER:
            if not self._read(new[:-1]):
                return ()
            new = new[-1:]
        began = time.perf_counter()
        last = len(new) - 1
        tokens = (*new, *drafts.tokens)
        parents = (
            *range(-1, last),
            *(last + 1 + parent if parent >= 0 else last for parent in drafts.parents),
        )
        rows = self._sequence.forward(tokens, parents, padded=False)
        wait_for(rows, self._settings)
        block_parents = (-1, *(parent + 1 for parent in drafts.parents))
        found = verify(
            rows,
            (new[-1], *drafts.tokens),
            block_parents,
            len(self._text),
            self._settings,
            self._counts,
            first=last,
        )
        self._sequence.commit([*range(last), *(last + node for node in found.nodes)])
        self._latency.note(len(tokens), len(self._text), (time.perf_counter() - began) * 1e3)
        self._text += found.tokens
        return found.tokens

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        for token in self._text[length:]:
            self._counts.remove(token)
        del self._text[length:]
        self._sequence.rollback(min(length, len(self._sequence.tokens)))
        self._text += tokens
        for token in tokens:
            self._counts.add(token)

    def _take_over(self) -> None:
        """Of the text, but for its last token, what the original has read."""
        if not self._original:
            return
        held, end = len(self._sequence.tokens), min(len(self._original.tokens), len(self._text) - 1)
        if held < end and self._original.tokens[:end] == self._text[:end]:
            self._sequence.adopt(self._original, self._text[held:end])

    def _read(self, tokens: Sequence[int]) -> bool:
        """All of them, unless it is stopped."""
        began = time.perf_counter()
        try:
            for at in range(0, len(tokens), CHUNK):
                if self._stop.is_set():
                    return False
                self._sequence.read(tokens[at : at + CHUNK])
            return True
        finally:
            self.read_ms += (time.perf_counter() - began) * 1e3
