"""The tables of the target's own next tokens, against a dictionary."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierchat.drafting.drafter import databases, runs_of
from hierchat.drafting.growing.evidence import went_on
from hierchat.drafting.source import PAIRS, TOP, WAYS, Context, Successors, first_slot, pair_key
from tests.drafting.databases import damaged, followers

TOKENS = st.integers(0, 5) | st.integers(0, 200_000)
STEPS = st.lists(st.lists(TOKENS, min_size=1, max_size=6), max_size=30)


def rows(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 150_000, (count, TOP)).astype(np.int32)


class Model:
    """A table kept in dictionaries; a set of slots forgets the pair that was updated longest ago."""

    def __init__(self) -> None:
        self.single: dict[int, list[int]] = {}
        self.sets: dict[int, dict[int, list[int]]] = {}

    def update(self, path: Sequence[int], top: NDArray[np.int32]) -> None:
        for (previous, token), row in zip(itertools.pairwise(path), top.tolist(), strict=True):
            self.single[token] = row
            if previous >= 0:
                key = previous << 32 | token
                held = self.sets.setdefault(first_slot(key), {})
                held.pop(key, None)
                held[key] = row
                if len(held) > WAYS:
                    del held[next(iter(held))]


def same(successors: Successors, model: Model) -> None:
    for token, row in model.single.items():
        assert followers(successors, token) == row
    assert (successors.single[:, 0] >= 0).sum() == len(model.single)
    pairs = {key: row for held in model.sets.values() for key, row in held.items()}
    for key, row in pairs.items():
        assert followers(successors, key >> 32, key & 0xFFFFFFFF) == row
    assert (successors.pair_keys >= 0).sum() == len(pairs)


def taught(steps: Sequence[Sequence[int]]) -> tuple[Successors, Model]:
    """As a reply teaches: each step's path begins with the last two tokens before it."""
    successors, model = Successors(), Model()
    text = [-1, 7]
    for number, tokens in enumerate(steps):
        path, top = [*text[-2:], *tokens[:-1]], rows(len(tokens), number)
        successors.update(path, top)
        model.update(path, top)
        text += tokens
    return successors, model


@given(steps=STEPS)
def test_it_holds_what_was_seen_last_and_comes_back_from_bytes(steps: list[list[int]]) -> None:
    successors, model = taught(steps)
    same(successors, model)
    again = Successors.from_bytes(successors.to_bytes())
    same(again, model)
    successors.update([1, 2], rows(1, 99))
    again.update([1, 2], rows(1, 99))
    assert again.to_bytes() == successors.to_bytes()


def test_the_oldest_of_a_full_set_goes() -> None:
    home = first_slot(pair_key(0, 0))
    crowd = [token for token in range(PAIRS * 2) if first_slot(pair_key(0, token)) == home][: WAYS + 1]
    assert len(crowd) == WAYS + 1
    successors = Successors()
    for token in crowd[:WAYS]:
        successors.update([0, token], rows(1, token))
    successors.update([0, crowd[0]], rows(1, 1000))
    successors.update([0, crowd[WAYS]], rows(1, crowd[WAYS]))
    assert followers(successors, 0, crowd[1]) == []
    assert followers(successors, 0, crowd[0]) == rows(1, 1000)[0].tolist()
    for token in crowd[2:]:
        assert followers(successors, 0, token) == rows(1, token)[0].tolist()


@given(data=st.data())
def test_damage_is_found(data: st.DataObject) -> None:
    whole = taught([[1, 2, 3], [4, 5]])[0].to_bytes()
    with pytest.raises(ValueError, match=r"cut off|version|damaged"):
        Successors.from_bytes(damaged(data, whole))


# The context: its chains through the occurrences of each token.


@settings(max_examples=60)
@given(parts=st.lists(st.lists(st.integers(0, 3) | st.integers(0, 200_000), max_size=9), min_size=1))
def test_chains_through_all_occurrences(parts: list[list[int]]) -> None:
    """`previous` and `newest` are what a dictionary says, also after a negative id was refused."""
    context = Context(parts[0])
    for part in parts[1:]:
        context.append(part)
    with pytest.raises(ValueError, match="negative"):
        context.append([3, -1])
    text = [token for part in parts for token in part]
    newest: dict[int, int] = {}
    previous = []
    for at, token in enumerate(text):
        previous.append(newest.get(token, -1))
        newest[token] = at
    assert context.length == len(text)
    assert context.tokens.tolist() == text
    assert context.previous.tolist() == previous
    assert {token: at for token, at in enumerate(context.newest.tolist()) if at >= 0} == newest


@settings(max_examples=60)
@given(
    text=st.lists(st.integers(0, 2), max_size=9), words=st.lists(st.integers(0, 2), min_size=1, max_size=2)
)
def test_words_that_something_follows(text: list[int], words: list[int]) -> None:
    ends = range(len(words), len(text))
    expected = any(text[end - len(words) : end] == words for end in ends)
    before, last = [-1, *words][-2:]
    assert went_on(databases(runs_of(()), Context(text), None), before, last) == expected
