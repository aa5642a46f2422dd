"""Drafters that put verification to the test: noise, and the target's own second choices.

They take no sources and learn nothing: what they propose must never change a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.config import GenerationSettings
from hierchat.drafting.tree import DraftTree
from hierchat.engine.local import LocalEngine

WIDEST = 24
"""Positions per forward where no width is asked for."""


class Trial:
    """Trees of its own, of 0 to width - 1 nodes, at random but the same each time. `seed` separates replies."""

    top = 0

    def __init__(self, vocabulary: int, width: int | None, seed: int) -> None:
        self._vocabulary = vocabulary
        self._most = (width or WIDEST) - 1
        self._random = np.random.default_rng(seed)
        self._at = 0  # tokens of the reply so far

    def begin(self, prompt: Sequence[int]) -> None:
        self._at = 0

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._at += len(tokens)

    def propose(self, limit: int | None = None) -> DraftTree:
        most = self._most if limit is None else min(self._most, limit)
        tokens, parents = self._nodes(int(self._random.integers(0, max(most, 0) + 1)))
        return DraftTree(tuple(tokens), tuple(parents), ("test",) * len(tokens), (1.0,) * len(tokens))

    def _nodes(self, size: int) -> tuple[list[int], list[int]]:
        raise NotImplementedError

    def _any(self, count: int) -> list[int]:
        return self._random.integers(0, self._vocabulary, count).tolist()


class Noise(Trial):
    """Random tokens in trees of any shape: several roots, deep branches, doubles."""

    def _nodes(self, size: int) -> tuple[list[int], list[int]]:
        return self._any(size), [int(self._random.integers(-1, node)) if node else -1 for node in range(size)]


class Adversary(Trial):
    """Knows `reply` and, at each of its positions, the token that the target liked next best.

    In turn: only second choices; a second choice with what would have been right below it; the reply itself, deep,
    each of its tokens among wrong siblings.
    """

    def __init__(
        self, reply: Sequence[int], seconds: Sequence[int], vocabulary: int, width: int | None, seed: int
    ) -> None:
        super().__init__(vocabulary, width, seed)
        self._reply = list(reply)
        self._seconds = list(seconds)
        self._turn = 0

    def _nodes(self, size: int) -> tuple[list[int], list[int]]:
        self._turn += 1
        right, wrong = self._reply[self._at :], self._seconds[self._at :]
        if self._turn % 3 == 0:
            return self._among_siblings(right, wrong, size)
        chain = (wrong if self._turn % 3 == 1 else wrong[:1] + right[1:])[:size]
        return chain, list(range(-1, len(chain) - 1))

    def _among_siblings(
        self, right: Sequence[int], wrong: Sequence[int], size: int
    ) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for pair in zip(right, wrong, strict=True):
            siblings = [*pair, *self._any(1)]
            if len(tokens) + len(siblings) > size:
                break
            self._random.shuffle(siblings)
            tokens += siblings
            parents += [parent] * len(siblings)
            parent = len(tokens) - len(siblings) + siblings.index(pair[0])
        return tokens, parents


def second_choices(
    engine: LocalEngine, prompt: Sequence[int], settings: GenerationSettings
) -> tuple[list[int], list[int]]:
    """A plain reply, and what the target liked next best in place of each of its tokens."""
    reply: list[int] = []
    seconds: list[int] = []
    for rows, step in engine.plain(prompt, settings):
        second, first = np.argpartition(rows[0], -2)[-2:].tolist()
        reply += step.tokens
        seconds.append(second if step.tokens[0] == first else first)
    return reply, seconds
