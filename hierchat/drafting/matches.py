"""From suffix matches to candidates, the same for every source that has an index."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.drafting.source import Candidate
from hierchat.drafting.suffix_index import SuffixIndex

KEPT = 8
"""Occurrences that are worth merging into a tree."""


def candidates(index: SuffixIndex, context: Sequence[int], budget: int, source: str) -> list[Candidate]:
    """The longest matches, newest first among equals. A match counts twice as much per further token matched, up to
    4: what stood after a longer match is the better guess, but several shorter ones may outvote it."""
    found = index.continuations(context, budget)
    found.sort(key=lambda match: -match[0])  # stable: newest first within a length
    return [
        Candidate(tokens, source, length, weight=2.0 ** min(length - 2, 4)) for length, tokens in found[:KEPT]
    ]
