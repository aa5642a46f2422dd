"""The context: its chains through the occurrences of each token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting.source import Context


def check(context: Context, text: list[int]) -> None:
    """`previous` and `newest` are what a dictionary says."""
    newest: dict[int, int] = {}
    previous = []
    for at, token in enumerate(text):
        previous.append(newest.get(token, -1))
        newest[token] = at
    assert context.length == len(text)
    assert context.tokens.tolist() == text
    assert context.previous.tolist() == previous
    assert {token: at for token, at in enumerate(context.newest.tolist()) if at >= 0} == newest


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(st.lists(st.integers(0, 3) | st.integers(0, 200_000), max_size=9), min_size=1))
def test_chains_through_all_occurrences(parts: list[list[int]]) -> None:
    context = Context(parts[0])
    for part in parts[1:]:
        context.append(part)
    check(context, [token for part in parts for token in part])


def test_a_negative_id_is_refused() -> None:
    context = Context([1, 2])
    with pytest.raises(ValueError, match="negative"):
        context.append([3, -1])
    check(context, [1, 2])


@settings(deadline=None, max_examples=60)
@given(
    text=st.lists(st.integers(0, 2), max_size=9), words=st.lists(st.integers(0, 2), min_size=1, max_size=3)
)
def test_words_that_something_follows(text: list[int], words: list[int]) -> None:
    ends = range(len(words), len(text))
    expected = any(text[end - len(words) : end] == words for end in ends)
    assert Context(text).went_on_behind(words) == expected
