"""Small models begin to repeat themselves, at temperature 0 above all: finds that in their tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

PERIODS = 3
"""Times that the same tokens stand in a row."""
LONGEST = 40
"""Tokens of the longest period that counts."""
SHORTEST_TAIL = 24
"""Tokens that must repeat, at least: a row of dashes or a number's zeros are no loop."""
LONGEST_PARAGRAPH = 256
"""The same of a reply for a user, whose paragraphs may repeat;"""
SHORT = 8
"""a period below which it may be what was asked for, as a row of zeros;"""
LONG_ROW = 240
"""tokens from which on it is a loop all the same;"""
SHORTEST_LOOP = 60
"""and those that make one of a longer period."""


def loop_at_end(text: Sequence[int]) -> int:
    """How many tokens at the end repeat what stands before them, period by period; 0 where there is no loop."""
    for period in range(1, min(LONGEST, len(text) // PERIODS) + 1):
        repeated = period * (max(PERIODS, -(-SHORTEST_TAIL // period)) - 1)
        if _repeats(text, period, repeated):
            return repeated
    return 0


def is_looping(reply: Sequence[int]) -> bool:
    """Whether a reply has come to repeat itself: one that nobody wants to read on."""
    for period in range(1, SHORT):
        if _repeats(reply, period, PERIODS * SHORT - period):
            return _repeats(reply, period, LONG_ROW - period)
    return any(
        _repeats(reply, period, max(PERIODS * period, SHORTEST_LOOP) - period)
        for period in range(SHORT, min(LONGEST_PARAGRAPH, len(reply) // PERIODS) + 1)
    )


def _repeats(text: Sequence[int], period: int, repeated: int) -> bool:
    """Whether so many tokens at the end equal those a period before them."""
    end = len(text)
    return (
        repeated + period <= end
        and text[-1] == text[-1 - period]
        and text[end - repeated :] == text[end - repeated - period : end - period]
    )
