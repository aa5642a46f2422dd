"""Replies that have come to repeat themselves."""

from __future__ import annotations

from itertools import count

import pytest

from hierchat.engine.generation import LONGEST_PARAGRAPH, is_looping

BEFORE = list(range(1000, 1100))


def loop(period: int, tokens: int) -> list[int]:
    return [place % period for place in range(tokens)]


@pytest.mark.parametrize("period", [20, 21, 50, LONGEST_PARAGRAPH])
def test_the_same_tokens_three_times_in_a_row_are_a_loop(period: int) -> None:
    first = next(n for n in count(period) if is_looping(BEFORE + loop(period, n)))
    assert first == 3 * period


@pytest.mark.parametrize("period", [1, 2, 7])
def test_short_periods_have_to_go_on_for_long(period: int) -> None:
    """A row of zeros may be what was asked for."""
    assert not is_looping(BEFORE + loop(period, 200))
    assert is_looping(BEFORE + loop(period, 240))


def test_what_is_said_twice_or_differs_is_no_loop() -> None:
    twice = loop(30, 60)
    numbered = [token for row in range(50) for token in (*range(9), 2000 + row)]
    for text in ([], [1], BEFORE, BEFORE + twice, numbered, loop(LONGEST_PARAGRAPH + 1, 1000)):
        assert not is_looping(text)
