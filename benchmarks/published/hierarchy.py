"""Draft by Hierarchy Drafting (Cho et al., 2025, arXiv 2502.05609).

Three databases lead from one token to the four that may follow it: W holds prompt and reply, up to seven continuations
of each token, the least recently used leaving first; S the 100,000 most frequent 5-grams of the model's earlier
replies and of the texts that ship; L is a corpus, searched by the last two tokens, then by the last one. They are
asked in this order until the budget is full: seven branches in the paper, here as many as the width has room for, the
last one cut short.

Left out is the lookahead window, which fills W with 28 more positions in every forward and needs the target's choices
at positions that no text leads to: no width measured here could afford it. Not repeated are mistakes of the published
code: the newest 5-gram enters W, S learns from every reply, short branches are not filled with random tokens, and a
branch that two databases propose counts once. Beginnings that branches share are verified once, but take up budget.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.common import Published, SortedTexts, merged
from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.suffix_index import BREAK
from hierchat.texts.corpora import SEED_NAME

BRANCHES, LENGTH = 7, 4
WIDTH = 1 + BRANCHES * LENGTH
PHRASES = 100_000
"""5-grams that S may hold."""
LOOKED_AT = 1024
"""Occurrences in the corpus whose continuations are counted, evenly over all."""

Branch = tuple[int, ...]


class HierarchyDrafting(Published):
    """Draft branches of four tokens from three databases."""

    def __init__(self, width: int | None, statistics: Sequence[SortedTexts] = ()) -> None:
        self._most = (width or WIDTH) - 1
        self._corpora = [_Corpus(texts) for texts in statistics if texts.name != SEED_NAME]
        self.forget()
        for texts in statistics:
            if texts.name == SEED_NAME:
                for reply in np.split(texts.tokens, np.flatnonzero(texts.tokens == BREAK) + 1):
                    self.learn(reply[reply != BREAK].tolist())
        self._seed = {key: dict(held.most_common(BRANCHES)) for key, held in self._history.items()}
        self.forget()

    def begin(self, prompt: Sequence[int]) -> None:
        self._text: list[int] = []
        self._context: dict[int, OrderedDict[Branch, None]] = defaultdict(OrderedDict)
        self.observe(prompt)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self._text += tokens
        for key, branch in _phrases(self._text, len(tokens)):
            held = self._context[key]
            held[branch] = None
            held.move_to_end(branch)
            if len(held) > BRANCHES:
                held.popitem(last=False)

    def propose(self, limit: int | None = None) -> DraftTree:
        budget = self._most if limit is None else min(self._most, limit)
        wanted = -(-budget // LENGTH)
        found: dict[Branch, str] = {}
        databases: Sequence[tuple[str, Callable[[], Sequence[Branch]]]] = (
            ("context", self._recent),
            ("history", self._frequent),
            ("statistics", self._common),
        )
        for source, ask in databases:
            if len(found) >= wanted:
                break
            for branch in ask():
                found.setdefault(branch, source)
        branches = [branch[: budget - LENGTH * at] for at, branch in enumerate([*found][:wanted])]
        return merged(branches, [*found.values()][: len(branches)], budget)

    def learn(self, reply: Sequence[int]) -> None:
        for key, branch in _phrases(reply, len(reply)):
            self._history[key][branch] += 1
            self._phrases += self._history[key][branch] == 1
        if self._phrases > 2 * PHRASES:
            self._thin()

    def forget(self) -> None:
        self._history: dict[int, Counter[Branch]] = defaultdict(Counter)
        self._phrases = 0

    def _recent(self) -> Sequence[Branch]:
        """Return the branches of W, the database of the context: newest first."""
        return [*reversed(self._context.get(self._text[-1], OrderedDict()))]

    def _frequent(self) -> Sequence[Branch]:
        """Return the branches of S, the database of frequent 5-grams: most frequent first."""
        nothing: dict[Branch, int] = {}
        held = self._history.get(self._text[-1], nothing)
        seed = self._seed.get(self._text[-1], nothing)
        best = dict.fromkeys([*nlargest(BRANCHES, held, key=held.__getitem__), *seed])
        return nlargest(BRANCHES, best, key=lambda branch: held.get(branch, 0) + seed.get(branch, 0))

    def _common(self) -> Sequence[Branch]:
        """Return the branches of L, the corpus: by two tokens, most frequent first, then by one."""
        branches: list[Branch] = []
        for size in (2, 1):
            if len(branches) < BRANCHES:
                counts = sum(
                    (corpus.after(self._text[-size:]) for corpus in self._corpora), Counter[Branch]()
                )
                branches += [branch for branch, _ in counts.most_common(BRANCHES)]
        return branches[:BRANCHES]

    def _thin(self) -> None:
        """Keep only the PHRASES most frequent 5-grams of S."""
        every = [
            (count, key, branch) for key, held in self._history.items() for branch, count in held.items()
        ]
        self.forget()
        for count, key, branch in nlargest(PHRASES, every, key=lambda phrase: phrase[0]):
            self._history[key][branch] = count
        self._phrases = PHRASES


def _phrases(text: Sequence[int], new: int) -> Iterator[tuple[int, Branch]]:
    """Return the 5-grams that end in the last `new` tokens: the first token, and the four behind it."""
    for end in range(max(len(text) - new, LENGTH) + 1, len(text) + 1):
        yield text[end - LENGTH - 1], tuple(text[end - LENGTH : end])


class _Corpus:
    """Look up a text by its suffix array."""

    def __init__(self, texts: SortedTexts) -> None:
        self._tokens, self._order = texts.tokens, texts.order

    def after(self, ending: Sequence[int]) -> Counter[Branch]:
        """Return branches that follow the `ending`, with their counts."""
        size = len(ending)

        def words(place: np.int32) -> list[int]:
            return self._tokens[place : place + size].tolist()

        begin = bisect_left(self._order, list(ending), key=words)
        end = bisect_left(self._order, [*ending[:-1], ending[-1] + 1], lo=begin, key=words)
        step = max(1, -(-(end - begin) // LOOKED_AT))
        places = self._order[begin:end:step].astype(np.int64) + size
        places = places[places + LENGTH <= len(self._tokens)]
        found = self._tokens[places[:, None] + np.arange(LENGTH)]
        return Counter(map(tuple, found[(found != BREAK).all(1)].tolist()))
