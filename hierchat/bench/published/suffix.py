"""SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975), as arctic-inference 0.3.0 has it.

Two suffix trees are asked, one over prompt and reply, one over all replies and the corpus. For every ending of the text
that is found in a tree there is a draft: of at most `FACTOR` times the ending's length in tokens, grown best-first by
path probability, where a branch's probability is its count over its parent's. The draft with the highest sum of
probabilities wins.

A suffix tree's count is the number of places where its path stands: so there is no tree here, but the text and a chain
through the places of each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.bench.published.common import SortedTexts
from hierchat.bench.published.suffix_kernels import extend, propose, withdraw
from hierchat.drafting.suffix_index import BREAK
from hierchat.drafting.tree import DraftTree

WIDTH = 33
"""32 drafts, `max_spec_tokens` of its vLLM plugin."""
FACTOR = 4.0
"""`max_spec_factor`: the largest of the paper's 1 to 4, which brings most here."""
LEAST = 0.1
"""`min_token_prob`."""
DEPTH = 64
"""`max_tree_depth`: of an ending and its draft together."""


class Suffix:
    """Drafts of a tree whose size follows the length of the match."""

    top = 0

    def __init__(
        self, width: int | None, statistics: Sequence[SortedTexts] = (), factor: float = FACTOR
    ) -> None:
        self._most = (width or WIDTH) - 1
        self._factor = factor
        self._here = _Text()
        self._replies = _Text()
        for texts in statistics:
            self._replies.append(texts.tokens)
        self._base = self._settled = len(self._replies)

    def begin(self, prompt: Sequence[int]) -> None:
        self._here.cut(0)
        self._here.append(prompt)
        self._replies.cut(self._settled)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._here.append(tokens)
        self._replies.append(tokens)

    def propose(self, limit: int | None = None) -> DraftTree:
        most = self._most if limit is None else min(self._most, limit)
        ending = self._here.ending()
        (score, tree), (other_score, other) = (
            text.draft(ending, most, self._factor, source)
            for text, source in ((self._here, "context"), (self._replies, "history"))
        )
        return tree if score >= other_score else other

    def learn(self, reply: Sequence[int]) -> None:
        self._replies.cut(self._settled)
        self._replies.append([*reply, BREAK])
        self._settled = len(self._replies)

    def forget(self) -> None:
        self._replies.cut(self._base)
        self._settled = self._base


class _Text:
    """Tokens with, for each, the place of the same token before it."""

    def __init__(self) -> None:
        self._tokens, self._previous = np.empty(0, np.int32), np.empty(0, np.int32)
        self._newest = np.empty(0, np.int32)
        self._scratch = np.empty((2, 0), np.int32)
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def append(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        new = np.asarray(tokens, np.int32)
        end = self._held + len(new)
        if end > len(self._tokens):
            room = np.empty(end + 1024, np.int32)
            self._tokens = np.concatenate([self._tokens, room])
            self._previous = np.concatenate([self._previous, room])
        known = len(self._newest)
        if len(new) and new.max() >= known:
            more = np.full(2 * int(new.max()) + 1 - known, -1, np.int32)
            self._newest = np.concatenate([self._newest, more])
            self._scratch = np.zeros((2, len(self._newest)), np.int32)
        extend(self._tokens, self._previous, self._newest, self._held, new)
        self._held = end

    def cut(self, kept: int) -> None:
        """Only the first tokens stay."""
        withdraw(self._tokens, self._previous, self._newest, self._held, kept)
        self._held = kept

    def ending(self) -> NDArray[np.int32]:
        """The last tokens: no more than are looked for."""
        return self._tokens[max(0, self._held - DEPTH) : self._held]

    def draft(
        self, ending: NDArray[np.int32], most: int, factor: float, source: str
    ) -> tuple[float, DraftTree]:
        """What follows the ending in this text, with its score."""
        tokens, parents = np.empty((2, most), np.int32)
        chances = np.empty(most, np.float32)
        size, score = propose(
            self._tokens,
            self._previous,
            self._newest,
            self._scratch,
            self._held,
            ending,
            most,
            factor,
            LEAST,
            DEPTH,
            tokens,
            parents,
            chances,
        )
        found = (row[:size].tolist() for row in (tokens, parents, chances))
        nodes, above, likely = map(tuple, found)
        return score, DraftTree(nodes, above, (source,) * size, likely)
