"""A level of the stack: a draft model that writes drafts for the level above, and is drafted for by the level below."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Literal, Protocol

import numpy as np

from hierchat.drafting.draft_tree import NO_MATCH, DraftTree, Match
from hierchat.drafting.proposer import Proposer
from hierchat.hierarchy import kernel

Provenance = Literal["kept", "corrected", "bonus"]
"""How a token came about: see plan.TokenAcceptance."""


class DraftModel(Protocol):
    """A model at work on one text: it chooses as the target does, with the same settings and the same noise."""

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int:
        """Tokens of the text, what it wrote itself included."""
        ...

    @property
    def room(self) -> int:
        """Tokens that its context still has room for."""
        ...

    @property
    def read_ms(self) -> float:
        """Milliseconds spent on reading text that it did not write, before it could verify."""
        ...

    @property
    def reading_ms(self) -> float:
        """Milliseconds that reading what it has not read yet is expected to take."""
        ...

    def begin(self, text: Sequence[int]) -> None:
        """Take up this text; what it has in common with the one before need not be read again."""
        ...

    def verify(self, drafts: DraftTree) -> Sequence[int]:
        """Verify drafts in one forward: returns those that are its own choices, and one choice more, with which the
        text goes on. Empty where it was stopped before it had read the text."""
        ...

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        """Keep the first `length` tokens of the text, and go on with these."""
        ...


class Below(Proposer, Protocol):
    """Drafts for a level: another level, or the databases."""

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        """Keep the first `length` tokens of the text, and go on with these."""
        ...


class Watcher(Protocol):
    """Learns what becomes of a level's work."""

    def forwarded(self, kept: int, bonus: bool, ms: float) -> None:
        """Note that a forward of this level kept so many drafts; all of them, if its own token is a bonus. `ms`: what
        it took, with all that lies below."""
        ...

    def looked_at(self, kinds: Sequence[Provenance], accepted: int) -> None:
        """Note that the level above accepted so many of a draft's tokens from its beginning on, and refused the
        next."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends a draft early: a token that ends the reply, or the user."""

    end_ids: Collection[int]
    stop: Event


class Level:
    """Writes drafts of at least `least` tokens, if nothing ends them sooner. A Proposer to the level above."""

    top = 0

    def __init__(
        self,
        model: DraftModel,
        below: Below | None,
        least: int,
        watcher: Watcher,
        ending: Ending,
    ) -> None:
        self.model = model
        self.below = below
        self.least = least
        self._watcher = watcher
        self._ending = ending
        self._start = 0
        self._draft: list[int] = []
        self._kinds: list[Provenance] = []
        self._sources: list[str] = []
        self._matches: list[Match] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Take up this text."""
        self.model.begin(prompt)
        self._draft = []
        if self.below:
            self.below.begin(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        """Write a draft as a chain of at most `limit` tokens; shorter where the reply ends or is stopped."""
        self._start, self._draft, self._kinds = self.model.length, [], []
        self._sources, self._matches = [], []
        most = self.model.room - 1 if limit is None else min(limit, self.model.room - 1)
        while len(self._draft) < min(self.least, most) and not self._ending.stop.is_set():
            began, read = time.perf_counter(), self.model.read_ms
            drafts = self.below.propose(most - len(self._draft) - 1) if self.below else DraftTree()
            tokens = self.model.verify(drafts)
            if not tokens:
                break
            if self.below:
                self.below.observe(tokens)
            bonus = self._add(drafts, tokens)
            ms = (time.perf_counter() - began) * 1e3 - (self.model.read_ms - read)
            self._watcher.forwarded(len(tokens) - 1, bonus, ms)
            if any(token in self._ending.end_ids for token in tokens):
                break
        chain = self._draft
        return DraftTree(
            tuple(chain), tuple(range(-1, len(chain) - 1)), tuple(self._sources), matches=tuple(self._matches)
        )

    def _add(self, drafts: DraftTree, tokens: Sequence[int]) -> bool:
        """Add what a forward brought to the draft. Returns whether its last token is a bonus."""
        nodes = {pair: node for node, pair in enumerate(zip(drafts.parents, drafts.tokens, strict=True))}
        above = -1
        for token in tokens[:-1]:
            above = nodes[above, token]
            self._sources.append(drafts.sources[above])
            self._matches.append(drafts.match(above))
            self._kinds.append("kept")
        bonus = above not in drafts.parents if above >= 0 else not drafts.tokens
        self._sources.append(self.model.name)
        self._matches.append(NO_MATCH)
        self._kinds.append("bonus" if bonus else "corrected")
        self._draft += tokens
        return bonus

    def observe(self, tokens: Sequence[int], top: object = None) -> None:
        """Take over the tokens that the level above chose in place of the draft."""
        same = 0
        while same < min(len(tokens), len(self._draft)) and tokens[same] == self._draft[same]:
            same += 1
        if self._draft:
            self._watcher.looked_at(self._kinds, same)
        self.follow(self._start + same if self._draft else self.model.length, tokens[same:])

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        """Keep the first `length` tokens of the text, and go on with these."""
        self.model.follow(length, tokens)
        if self.below:
            self.below.follow(length, tokens)
        self._draft = []


# The length of a draft, and how much of it the level above accepts.


@kernel
def pass_up(corrected, bonus, least, if_kept, if_corrected, if_bonus):  # type: ignore[no-untyped-def]
    """Follow a draft of at least `least` tokens, made of forwards (plan.Yield), to a level that accepts tokens by how
    they came about.

    Returns the forwards that it takes on average; the chances of its sizes least, least + 1, ... [longest run]; and
    the run of the level above, (corrected, bonus) [largest size + 1].
    """
    longest = len(corrected)
    most = least - 1 + longest
    reached = np.zeros(most + 1)  # that the draft is so long after some forward
    agreed = np.zeros(most + 1)  # the same, and all of it is accepted above
    wrong = np.zeros(most + 1)  # that so many are accepted, and the next is not
    reached[0] = agreed[0] = 1.0
    forwards = 0.0
    for size in range(least):
        forwards += reached[size]
        accepted = agreed[size]  # and `kept` more, so far
        remaining = 1.0
        for kept in range(longest):
            ends = corrected[kept] + bonus[kept]
            end = size + kept + 1
            reached[end] += reached[size] * ends
            good = corrected[kept] * if_corrected + bonus[kept] * if_bonus
            agreed[end] += accepted * good
            wrong[end - 1] += accepted * (ends - good)
            remaining -= ends
            if kept + 1 < longest:
                wrong[end - 1] += accepted * remaining * (1.0 - if_kept)
            accepted *= if_kept
    right = np.zeros(most + 1)
    right[least:] = agreed[least:]
    return forwards, reached[least:].copy(), wrong, right
