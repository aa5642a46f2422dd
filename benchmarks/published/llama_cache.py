"""Draft as llama.cpp's lookup decoding does (common/ngram-cache.cpp, examples/lookup): n-grams counted in three
caches.

What followed the last 1 to 4 tokens is counted in the *context* cache (prompt and reply) and in the *dynamic* one
(earlier replies), what followed the last 2 in the *static* one (a corpus). For the longest n-gram first, the most
frequent successor is drafted where it was seen often enough, and often enough among all successors; counts of the
first two caches are weighted with those of the static one. The draft is one chain, and goes on from its own tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.common import Published, SortedTexts, chain
from hierchat.drafting.draft_tree import DraftTree

WIDTH = 17
"""16 drafts, llama.cpp's default."""
LONGEST = 4
LAX = ((2, 66), (2, 50), (1, 50), (1, 50))
"""By length of the n-gram: how often it was seen at least, and the percentage that its successor needs."""
STRICT = ((4, 75), (3, 66), (2, 66), (2, 66))
STATIC = LAX[1]

Counts = dict[int, int]
Cache = dict[tuple[int, ...], Counts]


class LlamaCache(Published):
    """Draft one chain by counts of n-grams, as llama.cpp does."""

    def __init__(self, width: int | None, statistics: Sequence[SortedTexts] = ()) -> None:
        self._most = (width or WIDTH) - 1
        self._static = _Static(statistics)
        self.forget()

    def begin(self, prompt: Sequence[int]) -> None:
        self._text: list[int] = []
        self._context: Cache = {}
        self.observe(prompt)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._text += tokens
        _count(self._context, self._text, len(tokens))

    def propose(self, limit: int | None = None) -> DraftTree:
        most = self._most if limit is None else min(self._most, limit)
        ending, draft = self._text[-LONGEST:], list[int]()
        while len(draft) < most and len(self._text) > 1:
            static = self._static.after(ending[-2], ending[-1])
            token = _likely(self._context, ending, static, LAX)
            if token is None:
                token = _likely(self._dynamic, ending, static, STRICT)
            if token is None:
                token = _best(static, {}, STATIC)
            if token is None:
                break
            draft.append(token)
            ending = [*ending, token][-LONGEST:]
        return chain(draft, "caches", limit)

    def learn(self, reply: Sequence[int]) -> None:
        _count(self._dynamic, reply, len(reply))

    def forget(self) -> None:
        self._dynamic: Cache = {}


def _count(cache: Cache, text: Sequence[int], new: int) -> None:
    """Count the last `new` tokens of a text as successors of what stands before them."""
    for size in range(1, LONGEST + 1):
        for at in range(max(len(text) - new, size), len(text)):
            counts = cache.setdefault(tuple(text[at - size : at]), {})
            counts[text[at]] = counts.get(text[at], 0) + 1


def _likely(
    cache: Cache, ending: Sequence[int], static: Mapping[int, int], thresholds: Sequence[tuple[int, int]]
) -> int | None:
    """Return the token that follows the longest n-gram with a successor beyond doubt."""
    for size in range(len(ending), 0, -1):
        counts = cache.get(tuple(ending[-size:]))
        token = _best(counts, static, thresholds[size - 1]) if counts else None
        if token is not None:
            return token
    return None


def _best(counts: Mapping[int, int], static: Mapping[int, int], threshold: tuple[int, int]) -> int | None:
    least, percent = threshold
    seen = sum(counts.values())
    if not seen or seen < least or (100 * max(counts.values()) < percent * seen and not static):
        return None
    token = max(counts, key=lambda token: counts[token] * (100 * static[token] if token in static else 1))
    return token if 100 * counts[token] >= percent * seen else None


class _Static:
    """Count what followed each pair of tokens in a corpus, as sorted triples."""

    def __init__(self, statistics: Sequence[SortedTexts]) -> None:
        pieces = [_triples(texts.tokens) for texts in statistics]
        triples, self._counts = np.unique(
            np.concatenate([*pieces, np.empty(0, np.int64)]), return_counts=True
        )
        self._pairs, self._tokens = triples >> _BITS, triples & (1 << _BITS) - 1

    def after(self, first: int, second: int) -> Counts:
        pair = first << _BITS | second
        begin, end = self._pairs.searchsorted([pair, pair + 1])
        return dict(zip(self._tokens[begin:end].tolist(), self._counts[begin:end].tolist(), strict=True))


_BITS = 21
"""Of a token id: three fit into 64 bits."""


def _triples(tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """Encode all three tokens in a row as one number; none across a BREAK."""
    wide = tokens.astype(np.int64)
    first, second, third = wide[:-2], wide[1:-1], wide[2:]
    return (first << 2 * _BITS | second << _BITS | third)[(first >= 0) & (second >= 0) & (third >= 0)]
