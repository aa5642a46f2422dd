"""Draft by Token Recycling (Luo et al., 2024, arXiv 2408.08696).

A table holds for each token its eight likeliest successors in the target's logits where that token was last read. A
fixed tree is filled from it: node "02" is the third successor of the first successor of the last token. The table is
kept between replies.

The published code also learns from rejected drafts and from the prompt; here the target tells of the reply's tokens
alone. The published tree has 80 nodes; fewer are those with the lowest ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.common import Published, SortedTexts
from hierchat.drafting.draft_tree import DraftTree

PUBLISHED = """
0 1 2 3 4 5 6 7
00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 100 101 110 200 300 400 500
0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
00000 00001 00002 00010 00020 00100 01000 10000
000000 000001 000100
"""
"""The tree, each node by the ranks on the way to it."""
WIDTH = 32
"""Where nothing else is asked for: what a CPU can afford of it."""


class TokenRecycling(Published):
    """Draft a static tree of the target's likeliest successors."""

    top = 8

    def __init__(self, width: int | None, statistics: Sequence[SortedTexts] = ()) -> None:
        self._tree = _first((width or WIDTH) - 1)
        self._last = -1
        self.forget()

    def begin(self, prompt: Sequence[int]) -> None:
        self._last = prompt[-1]

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        assert top is not None
        for token, successors in zip((self._last, *tokens), top.tolist(), strict=False):
            self._successors[token] = [successor for successor in successors if successor >= 0]
        self._last = tokens[-1]

    def propose(self, limit: int | None = None) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        placed: list[
            int
        ] = []  # where a node of the static tree stands in this one, -2 where nothing is known
        for above, rank in self._tree if limit is None else self._tree[:limit]:
            parent = placed[above] if above >= 0 else -1
            known: Sequence[int] = ()
            if parent > -2:
                known = self._successors.get(tokens[parent] if parent >= 0 else self._last, ())
            if rank >= len(known):
                placed.append(-2)
                continue
            placed.append(len(tokens))
            tokens.append(known[rank])
            parents.append(parent)
        return DraftTree(tuple(tokens), tuple(parents), ("successors",) * len(tokens), (1.0,) * len(tokens))

    def forget(self) -> None:
        self._successors: dict[int, list[int]] = {}


def _first(count: int) -> list[tuple[int, int]]:
    """Return (parent, rank) of the `count` nodes whose ranks, counted from 1, add up to least; of equals the higher
    ones."""
    names = sorted(PUBLISHED.split(), key=lambda name: (sum(map(int, name)) + len(name), len(name)))[:count]
    return [(names.index(name[:-1]) if len(name) > 1 else -1, int(name[-1])) for name in names]
