"""From suffix matches to candidates, the same for every source that has an index."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.drafting.source import Candidate
from hierchat.drafting.suffix_index import SuffixIndex


def candidates(index: SuffixIndex, context: Sequence[int], budget: int, source: str) -> list[Candidate]:
    """What followed the newest occurrences of the context's ending, newest first."""
    return [Candidate(tokens, source, length) for length, tokens in index.continuations(context, budget)]
