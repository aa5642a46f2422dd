"""Draft by SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975), as arctic-inference 0.3.0 has it.

Two suffix trees are asked, one over prompt and reply, one over all replies and the corpus. For every ending of the text
that is found in a tree there is a draft: of at most `FACTOR` times the ending's length in tokens, grown best-first by
path probability, where a branch's probability is its count over its parent's. The draft with the highest sum of
probabilities wins.

A suffix tree's count is the number of places where its path stands: so there is no tree here, but the text and a chain
through the places of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.common import Published, SortedTexts
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.suffix_index import BREAK
from hierchat.jit import Kernels

# The inner loops of suffix.py, compiled. A text is `tokens` with `previous`, the place of the same token
# before each, and `newest`, the last place of each token.


kernel = Kernels(__file__)


@kernel
def extend(tokens: Any, previous: Any, newest: Any, held: Any, new: Any) -> None:
    """Append `new` tokens behind the `held` ones; negative ones separate texts."""
    for place in range(len(new)):
        token = new[place]
        tokens[held + place] = token
        previous[held + place] = -1
        if token >= 0:
            previous[held + place] = newest[token]
            newest[token] = held + place


@kernel
def withdraw(tokens: Any, previous: Any, newest: Any, held: Any, kept: Any) -> None:
    """Forget all but the first `kept` tokens."""
    for place in range(held - 1, kept - 1, -1):
        if tokens[place] >= 0:
            newest[tokens[place]] = previous[place]


@kernel
def propose(
    tokens: Any,
    previous: Any,
    newest: Any,
    scratch: Any,
    held: Any,
    ending: Any,
    most: Any,
    factor: Any,
    least: Any,
    deepest: Any,
    draft: Any,
    parents: Any,
    chances: Any,
) -> tuple[int, float]:
    """Write the best draft behind `ending` into the last three, [most]; return its nodes' number and sum of chances."""
    ends, counts = _occurrences(tokens, previous, newest, held, ending, deepest)
    best, size = 0.0, 0
    found, above = np.empty(most, np.int32), np.empty(most, np.int32)
    likely = np.empty(most, np.float32)
    for length in range(len(counts) - 1, 0, -1):
        if counts[length] == 0:
            continue
        room = min(most, int(length * factor + 1e-6))
        nodes, score = _grow(
            tokens, held, scratch, ends[: counts[length]], room, deepest - length, least, found, above, likely
        )
        if score > best:
            best, size = score, nodes
            draft[:size], parents[:size], chances[:size] = found[:size], above[:size], likely[:size]
    return size, best


@kernel
def _occurrences(tokens: Any, previous: Any, newest: Any, held: Any, ending: Any, deepest: Any) -> Any:
    """Find places where the ending's last token stands, those with the longest match first; and how many match by 0, 1,
    ... tokens at least."""
    last = ending[-1]
    longest = min(len(ending), deepest)
    counts = np.zeros(longest + 2, np.int64)
    place = newest[last] if last < len(newest) else -1
    total = 0
    while place >= 0:
        total += 1
        place = previous[place]
    places, matches = np.empty(total, np.int32), np.empty(total, np.int32)
    place = newest[last] if total else -1
    for at in range(total):
        match, limit = 1, min(longest, place + 1)
        while match < limit and tokens[place - match] == ending[len(ending) - 1 - match]:
            match += 1
        places[at], matches[at] = place, match
        counts[match] += 1
        place = previous[place]
    for length in range(longest - 1, -1, -1):
        counts[length] += counts[length + 1]
    ends = np.empty(total, np.int32)
    filled = counts[1:].copy()  # where those with a match of this length go
    for at in range(total):
        ends[filled[matches[at]]] = places[at]
        filled[matches[at]] += 1
    return ends, counts[: longest + 1]


@kernel
def _grow(
    tokens: Any,
    held: Any,
    scratch: Any,
    ends: Any,
    room: Any,
    deepest: Any,
    least: Any,
    found: Any,
    above: Any,
    likely: Any,
) -> tuple[int, float]:
    """Grow a tree of at most `room` nodes that follows the text at `ends`."""
    counts, goes = scratch[0], scratch[1]
    members = np.empty(len(ends) * (room + 2), np.int32)
    members[: len(ends)] = ends
    used = len(ends)
    most = room * 16 + 16
    begins, sizes, depths = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    token_of, parent_of = np.empty(most, np.int32), np.empty(most, np.int32)
    chance_of = np.empty(most, np.float64)
    waiting = np.zeros(most, np.bool_)
    begins[0], sizes[0], depths[0], chance_of[0] = 0, len(ends), 0, 1.0
    known, item, nodes, score = 1, 0, 0, 0.0
    node = -1
    while nodes < room:
        begin, size, depth = begins[item], sizes[item], depths[item]
        if depth < deepest:
            for at in range(begin, begin + size):
                place = members[at] + depth + 1
                if place < held and tokens[place] >= 0:
                    counts[tokens[place]] += 1
            for at in range(begin, begin + size):
                place = members[at] + depth + 1
                if place >= held or tokens[place] < 0:
                    continue
                token = tokens[place]
                if counts[token] > 0:
                    chance = chance_of[item] * counts[token] / size
                    goes[token] = -1
                    if chance >= least and known < most:
                        goes[token] = used
                        begins[known], sizes[known], depths[known] = used, counts[token], depth + 1
                        token_of[known], parent_of[known], chance_of[known] = token, node, chance
                        waiting[known] = True
                        used += counts[token]
                        known += 1
                    counts[token] = 0
                if goes[token] >= 0:
                    members[goes[token]] = members[at]
                    goes[token] += 1
        item = -1
        for at in range(known):
            if waiting[at] and (item < 0 or chance_of[at] > chance_of[item]):
                item = at
        if item < 0:
            break
        waiting[item] = False
        node = nodes
        found[node], above[node], likely[node] = token_of[item], parent_of[item], chance_of[item]
        score += chance_of[item]
        nodes += 1
    return nodes, score


WIDTH = 33
"""32 drafts, `max_spec_tokens` of its vLLM plugin."""
FACTOR = 4.0
"""`max_spec_factor`: the largest of the paper's 1 to 4, which brings most here."""
LEAST = 0.1
"""`min_token_prob`."""
DEPTH = 64
"""`max_tree_depth`: of an ending and its draft together."""


class Suffix(Published):
    """Draft a tree whose size follows the length of the match."""

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
    """Hold tokens and, for each, the place of an equal token before it."""

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
        """Keep only the first tokens."""
        withdraw(self._tokens, self._previous, self._newest, self._held, kept)
        self._held = kept

    def ending(self) -> NDArray[np.int32]:
        """Return the last tokens of the text, no more than are looked for."""
        return self._tokens[max(0, self._held - DEPTH) : self._held]

    def draft(
        self, ending: NDArray[np.int32], most: int, factor: float, source: str
    ) -> tuple[float, DraftTree]:
        """Draft what follows the ending in this text, with its score."""
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
