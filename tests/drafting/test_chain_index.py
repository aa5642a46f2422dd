"""The suffix index against a search through the whole log."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.suffix_index import BREAK, MAX_MATCH, SuffixIndex

Found = list[tuple[int, list[int]]]

tokens = st.integers(0, 2)
logs = st.lists(st.one_of(tokens, tokens, tokens, tokens, st.just(BREAK)), max_size=80)
contexts = st.lists(tokens, max_size=40)


def brute_force(log: Sequence[int], context: Sequence[int], length: int, visits: int) -> Found:
    """Every place where the context's last pair ends, newest first; where there is none, its last token."""
    if length < 1:
        return []
    for known, most in ((2, visits), (1, visits // 2)):
        if len(context) < known:
            continue
        ending = list(context[-known:])
        places = [end for end in range(known - 1, len(log)) if list(log[end + 1 - known : end + 1]) == ending]
        found: Found = []
        for end in places[::-1][:most]:
            match = 0
            for held, wanted in zip(log[end::-1], context[::-1], strict=False):
                if held != wanted:
                    break
                match += 1
            following = [*log[end + 1 : end + 1 + length], BREAK]
            following = following[: following.index(BREAK)]
            if following:
                found.append((min(match, MAX_MATCH), following))
        if found:
            return found
    return []


@given(log=logs, context=contexts, length=st.integers(0, 9), visits=st.integers(1, 12))
def test_finds_what_a_full_search_finds(log: list[int], context: list[int], length: int, visits: int) -> None:
    index = SuffixIndex(visits)
    index.append(log)
    assert len(index) == len(log)
    assert index.continuations(context, length) == brute_force(log, context, length, visits)


@given(log=logs, cut=st.integers(0, 80), length=st.integers(1, 9))
def test_continues_its_own_ending_however_it_was_appended(log: list[int], cut: int, length: int) -> None:
    index = SuffixIndex()
    index.append(log[:cut])
    index.append(log[cut:])
    context = [token for token in log if token != BREAK]
    assert index.continuations(context, length) == brute_force(log, context, length, 16)


def test_match_length_ends_at_the_longest() -> None:
    text = list(range(50))
    index = SuffixIndex()
    index.append(text)
    assert index.continuations(text[:40], 3) == [(MAX_MATCH, [40, 41, 42])]
    assert index.continuations([99, *text[10:15]], 3) == [(5, [15, 16, 17])]


def test_break_ends_matches_and_continuations() -> None:
    index = SuffixIndex()
    index.append([1, 2, 3, BREAK, 1, 2, 3, 4, BREAK])
    assert index.continuations([1, 2], 5) == [(2, [3, 4]), (2, [3])]
    assert index.continuations([1, 2, 3], 5) == [(3, [4])]  # nothing follows the first
    # That pair stands across the break only: the last token counts alone
    assert index.continuations([3, 1], 5) == [(1, [2, 3, 4]), (1, [2, 3])]
    assert index.continuations([3, 1, 2], 5) == [(2, [3, 4]), (2, [3])]


def test_a_single_token_serves_where_no_pair_does() -> None:
    index = SuffixIndex()
    index.append([1, 2, 3, 4, 2, 5])
    assert index.continuations([9, 2], 2) == [(1, [5]), (1, [3, 4])]
    assert index.continuations([2], 1) == [(1, [5]), (1, [3])]
    assert index.continuations([1, 2], 2) == [(2, [3, 4])]
    assert index.continuations([5], 2) == index.continuations([9], 2) == []


def test_visits_are_bounded() -> None:
    index = SuffixIndex(visits=4)
    index.append([7, 8, 9] * 100)
    assert len(index.continuations([7, 8], 2)) == 4
    assert len(index.continuations([9, 8], 2)) == 2


def test_large_token_ids_do_not_mix() -> None:
    large = 2**31 - 1
    index = SuffixIndex()
    index.append([0, large, 5, large, 0, 6, 1, large, 7])
    assert index.continuations([0, large], 1) == [(2, [5])]
    assert index.continuations([large, 0], 1) == [(2, [6])]
    assert index.continuations([1, large], 1) == [(2, [7])]
