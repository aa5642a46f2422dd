"""Let one model draft for another: it chooses under the same noise, and rolls back where the other chose otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_cost import LatencyCurve
from hierchat.drafting.draft_tree import DraftTree
from hierchat.engine.generation import CHUNK, common_prefix
from hierchat.engine.runner import CachedSequence
from hierchat.engine.sampling.sampler import Counts
from hierchat.engine.verification import ArrayRows, Rows, Sampler, verify

NEW_AT_ONCE = 16
"""Tokens new to the model that go into the forward that verifies, at most; more are read before."""


@dataclass(frozen=True, slots=True)
class DraftedReply:
    """Settings of the reply that draft models write for, what stops or ends it, and its user. `users`: by draft model,
    whose text its slots hold; another user's text is not reused."""

    settings: GenerationSettings
    stop: threading.Event
    user: int | None = None
    users: dict[str, int | None] = field(default_factory=dict)
    end_ids: Collection[int] = ()


@dataclass(eq=False)
class CachedDraftModel:
    """Runs a draft model on one text: it chooses as the target does, with the same settings and noise. `vocabulary`: of
    the target, whose tokens are the same but for padding. `original`: the target's sequence if this is its rounded
    copy, whose keys and values it takes over."""

    name: str
    _sequence: CachedSequence
    _latency: LatencyCurve
    _reply: DraftedReply
    _vocabulary: int
    _original: CachedSequence | None = None

    def __post_init__(self) -> None:
        self._text: list[int] = []
        self._counts = Counts()
        self._sampler = Sampler(self._reply.settings, self._counts)
        self.read_ms = 0.0
        """Milliseconds spent on reading text that it did not write, before it could verify."""

    @property
    def length(self) -> int:
        return len(self._text)

    @property
    def room(self) -> int:
        return self._sequence.context_length - len(self._text)

    @property
    def reading_ms(self) -> float:
        """Return the milliseconds expected of reading what the slots do not hold, in forwards of the widest size."""
        if self._original:
            return 0.0
        step_ms = self._latency.step_ms(len(self._text))
        return (len(self._text) - len(self._sequence.tokens)) * step_ms[-1] / len(step_ms)

    def begin(self, text: Sequence[int]) -> None:
        """Begin a text; what it has in common with the one before need not be read again."""
        reply = self._reply
        own = reply.users.get(self.name, reply.user) == reply.user
        reply.users[self.name] = reply.user
        self._sequence.rollback(common_prefix(self._sequence.tokens, text[:-1]) if own else 0)
        self._text = list(text)
        self._counts = Counts(text)
        self._sampler = Sampler(reply.settings, self._counts)

    def verify(self, drafts: DraftTree) -> Sequence[int]:
        """Verify drafts in one forward; return its own choices among them, and one more. Empty if stopped."""
        if self._original:  # but for the last token: it opens the segment
            held, end = len(self._sequence.tokens), min(len(self._original.tokens), len(self._text) - 1)
            if held < end and self._original.tokens[:end] == self._text[:end]:
                self._sequence.adopt(self._original, self._text[held:end])
        new = self._text[len(self._sequence.tokens) :]
        if len(new) > NEW_AT_ONCE:
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
        rows = self._sequence.forward(self._own(tokens), parents, padded=False)
        if self._sequence.vocabulary != self._vocabulary:
            rows = _over(rows, self._vocabulary)
        self._sampler.wait_for(rows)
        nodes, chosen = verify(rows, drafts, len(self._text), self._sampler, root=last)
        self._sequence.commit([*range(last), *(last + node for node in nodes)])
        self._latency.note(len(tokens), len(self._text), (time.perf_counter() - began) * 1e3)
        self._text += chosen
        return chosen

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        """Keep the first `length` tokens of the text, and go on with these."""
        for token in self._text[length:]:
            self._counts.remove(token)
        del self._text[length:]
        self._sequence.rollback(min(length, len(self._sequence.tokens)))
        self._text += tokens
        for token in tokens:
            self._counts.add(token)

    def _read(self, tokens: Sequence[int]) -> bool:
        began = time.perf_counter()
        try:
            for at in range(0, len(tokens), CHUNK):
                if self._reply.stop.is_set():
                    return False
                self._sequence.read(self._own(tokens[at : at + CHUNK]))
            return True
        finally:
            self.read_ms += (time.perf_counter() - began) * 1e3

    def _own(self, tokens: Sequence[int]) -> list[int]:
        """Read tokens that only the target's padding has as the first one."""
        return [token if token < self._sequence.vocabulary else 0 for token in tokens]


NEVER = np.float32(-1e30)
"""Logit of a token that the model does not have."""


def _over(rows: Rows, vocabulary: int) -> Rows:
    """Return rows over another vocabulary, whose tokens beyond the model's own never come."""
    found = np.full((len(rows), vocabulary), NEVER, np.float32)
    for node in range(len(rows)):
        row = rows[node][:vocabulary]
        found[node, : len(row)] = row
    return ArrayRows(found)
