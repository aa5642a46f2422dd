"""Drafters that a test knows: noise, the truth, and the truth among many wrong tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Candidate
from hierchat.drafting.tree import DraftTree
from tests.tiny import VOCABULARY


class Noise:
    """A source of random chains."""

    name = "noise"

    def begin(self, prompt: Sequence[int]) -> None:
        self._random = np.random.default_rng(len(prompt))

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        chains = self._random.integers(0, VOCABULARY, (6, budget)).tolist()
        return [Candidate(tuple(chain), self.name, 4) for chain in chains]


class Oracle:
    """A source that knows the reply, and is sure of it."""

    name = "oracle"

    def __init__(self, reply: Sequence[int]) -> None:
        self.reply = tuple(reply)

    def begin(self, prompt: Sequence[int]) -> None:
        self.at = 0

    def observe(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        return [Candidate(self.reply[self.at : self.at + budget], self.name, 32)]


class TreeDrafter(Drafter):
    """Proposes trees of its own, of `nodes` nodes each."""

    def __init__(self, reply: Sequence[int] = (), nodes: int = 24) -> None:
        super().__init__([], width=nodes + 1)
        self.most = nodes
        self.reply = list(reply)
        self.random = np.random.default_rng(nodes)

    def propose(self, limit: int | None = None) -> DraftTree:
        room = self.most if limit is None else min(self.most, limit)
        tokens, parents = self.nodes(room)
        size = len(tokens)
        return DraftTree(tuple(tokens), tuple(parents), ("tree",) * size, (1.0,) * size)

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        """Random trees with roots, doubles and all."""
        parents = [int(self.random.integers(-1, node)) if node else -1 for node in range(room)]
        return self.random.integers(0, VOCABULARY, room).tolist(), parents


class Adversary(TreeDrafter):
    """Every first draft is wrong; below each stands what would have been right."""

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        at = len(self._context) - self.begun
        right = self.reply[at : at + 1] or [0]
        half = room // 2
        wrong = [(right[0] + 1 + i) % VOCABULARY for i in range(half)]
        return wrong + right * half, [-1] * half + list(range(half))

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self.begun = len(prompt)


class Buried(Adversary):
    """The true text, one token deep in turn with wrong ones: its path jumps across the block."""

    def nodes(self, room: int) -> tuple[list[int], list[int]]:
        at = len(self._context) - self.begun
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in self.reply[at : at + room // 3]:
            tokens += [(token + 1) % VOCABULARY, token, (token + 2) % VOCABULARY]
            parents += [parent] * 3
            parent = len(tokens) - 2
        return tokens, parents
