"""Small models at temperature 0 begin to repeat themselves; what is repeated is worth keeping once."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 40
"""Tokens of the longest period that counts."""
PERIODS = 3
SHORTEST_TAIL = 24
"""Tokens that must repeat, at least: a row of dashes or a number's zeros are no loop."""


def loop_at_end(text: Sequence[int]) -> int:
    """How many tokens at the end repeat what stands before them, period by period; 0 where there is no loop."""
    for period in range(1, min(LONGEST, len(text) // PERIODS) + 1):
        if text[-1] != text[-1 - period]:
            continue
        repeated = period * (max(PERIODS, -(-SHORTEST_TAIL // period)) - 1)
        end = len(text)
        if (
            repeated + period <= end
            and text[end - repeated :] == text[end - repeated - period : end - period]
        ):
            return repeated
    return 0
