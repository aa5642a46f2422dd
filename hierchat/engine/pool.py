"""The sequences of a runner: each belongs to one reply at a time, and keeps its text for the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hierchat.engine.decoding import common_prefix
from hierchat.engine.runner import CachedSequence, TooManySequences

WORTH_TAKING_OVER = 16
"""Tokens; fewer are read again."""


class Pool:
    """Up to `most` sequences, opened as they are needed; `first` is open already. The one that was used least recently
    gives its text up first. What a user's sequence holds is never used for another user."""

    def __init__(self, first: CachedSequence, most: int = 1) -> None:
        self.most = max(most, 1)
        self.latest = first
        """The one that a reply was given last."""
        self._free = [first]  # the least recently used first
        self._taken: list[CachedSequence] = []
        self._users: dict[int, int | None] = {}
        self._lock = threading.Lock()

    @contextmanager
    def sequence(self, prompt: Sequence[int], user: int | None = None) -> Iterator[CachedSequence]:
        """One for the time of a reply; see `take`."""
        sequence = self.take(prompt, user)
        try:
            yield sequence
        finally:
            self.give(sequence)

    def take(self, prompt: Sequence[int], user: int | None = None) -> CachedSequence:
        """A sequence for a reply to this prompt, which holds as much of it as some sequence of this user's did, and
        nothing else. Raises TooManySequences."""
        with self._lock:
            own = self._own(user)
            shared = {id(one): common_prefix(one.tokens, prompt) for one in own}
            sequence = self._chosen(shared)
            held = shared.get(id(sequence), 0)
            self._free = [one for one in self._free if one is not sequence]
            self._taken.append(sequence)
            self._users[id(sequence)] = user
            self.latest = sequence
            sequence.rollback(held)
            holder = max(own, key=lambda one: shared[id(one)], default=sequence)
            if (most := shared.get(id(holder), 0)) >= held + WORTH_TAKING_OVER:
                sequence.adopt(holder, prompt[held:most])
            return sequence

    def give(self, sequence: CachedSequence) -> None:
        """The reply has ended."""
        with self._lock:
            self._taken = [one for one in self._taken if one is not sequence]
            self._free.append(sequence)

    def shared(self, prompt: Sequence[int], user: int | None = None) -> int:
        """Tokens of a prompt that need not be read for this user."""
        with self._lock:
            return max((common_prefix(one.tokens, prompt) for one in self._own(user)), default=0)

    def forget(self, prompt: Sequence[int], kept: int) -> None:
        """Of this prompt hold no more than its first `kept` tokens; replies in progress keep theirs."""
        with self._lock:
            for sequence in self._free:
                if common_prefix(sequence.tokens, prompt) > kept:
                    sequence.rollback(kept)

    def clear(self) -> None:
        """Hold nothing of any text; replies in progress keep theirs."""
        with self._lock:
            for sequence in self._free:
                sequence.rollback(0)

    def _own(self, user: int | None) -> list[CachedSequence]:
        return [one for one in (*self._free, *self._taken) if self._users.get(id(one)) == user]

    def _chosen(self, shared: Mapping[int, int]) -> CachedSequence:
        """One whose text goes on, or branches off in its second half; else an empty one, or the one used least
        recently. `shared`: what each of the user's own holds of the prompt."""
        mine = [one for one in self._free if id(one) in shared]
        best = max(mine, key=lambda one: shared[id(one)], default=None)
        if best is not None and 2 * shared[id(best)] >= len(best.tokens):
            return best
        if empty := next((one for one in self._free if not one.tokens), None):
            return empty
        if len(self._free) + len(self._taken) < self.most:
            try:
                return self.latest.runner.open()
            except TooManySequences:
                self.most = len(self._free) + len(self._taken)
        if not self._free:
            raise TooManySequences(f"{len(self._taken)} replies are being written; no more fit into memory.")
        return self._free[0]
