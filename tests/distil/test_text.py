"""What a draft learns from: which tokens it knows, how text becomes windows, and whose text it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.corpus import seed
from hierchat.distil.text import WINDOW, TooLittleText, frequent, replies, samples, written
from hierchat.drafting.suffix_index import BREAK
from hierchat.makers.seeds.pack import write_texts
from hierchat.store import NewTurn, Store, TurnFigures
from tests.chat import tiny

END = 2
LEAST = 9 * WINDOW + 1
"""Tokens that make eight windows to learn from and one to measure on."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "history.db") as store:
        yield store


def begin_reply(store: Store, user: int, model_key: str, tokens: Sequence[int]) -> int:
    conversation = store.create_conversation(user)
    question = store.add_message(user, conversation, None, "user", "q")
    turn = NewTurn("tiny", model_key, {}, seed=0, drafted=False)
    message = store.begin_reply(user, conversation, question, turn)
    store.append_reply(message, "text", tokens, ["target"] * len(tokens))
    return message


def reply(store: Store, user: int, model_key: str, tokens: Sequence[int]) -> None:
    """A finished reply of these tokens."""
    message = begin_reply(store, user, model_key, tokens)
    store.finish_reply(message, "text", "complete", TurnFigures())


def texts(length: int, seed: int = 0) -> np.ndarray:
    """Tokens from 3 to 39, and now and then a BREAK."""
    text = np.random.default_rng(seed).integers(3, 40, length)
    text[50::100] = BREAK
    return text


def test_of_the_texts_that_ship_only_those_that_the_target_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(seed, "seeds_dir", lambda: tmp_path)
    write_texts(tmp_path / "tiny.jsonl.xz", ["one", "two"])
    write_texts(tmp_path / "other.jsonl.xz", ["three"])
    entries, tokens = tiny.catalogue("tiny", "none"), tiny.tokenizer()
    text = written(entries.entry("tiny"), tokens)
    one, two = (tokens(word)["input_ids"] for word in ("one", "two"))
    assert text.tolist() == [BREAK, *one, BREAK, *two, BREAK]
    assert text.dtype == np.int64
    assert written(entries.entry("none"), tokens).tolist() == [BREAK]


def test_finished_replies_of_one_user_and_model(store: Store) -> None:
    ann, bob = store.ensure_user("ann"), store.ensure_user("bob")
    reply(store, ann, "key", [5, 6, 7])
    reply(store, ann, "another key", [8])
    reply(store, bob, "key", [9])
    reply(store, ann, "key", [70_000, END])
    begin_reply(store, ann, "key", [10])
    text = replies(store, ann, "key")
    assert text.tolist() == [BREAK, 5, 6, 7, BREAK, 70_000, END, BREAK]
    assert text.dtype == np.int64
    assert replies(store, bob, "another key").tolist() == [BREAK]


def test_the_most_frequent_tokens_are_known_and_those_that_must_be() -> None:
    text = np.array([BREAK, 7, 7, 7, 5, 5, 9, BREAK, BREAK, BREAK])
    assert frequent(text, 3, {2}).tolist() == [2, 5, 7]
    assert frequent(text, 100, {2, 40}).tolist() == [2, 5, 7, 9, 40]
    assert frequent(text, 1, {40, 2}).tolist() == [2]


def test_a_token_that_is_frequent_and_must_be_known_takes_one_place() -> None:
    assert frequent(np.array([7, 7, 7, 5, 5, 9]), 2, {7}).tolist() == [5, 7]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30) | st.just(BREAK), max_size=200),
    st.integers(1, 20),
    st.sets(st.integers(0, 40), max_size=3),
)
def test_no_token_that_is_left_out_is_more_frequent(text: list[int], most: int, always: set[int]) -> None:
    known = frequent(np.array(text, np.int64), most, always).tolist()
    counts = Counter(token for token in text if token != BREAK)
    assert known == sorted(set(known))
    assert len(known) == min(most, len(always | set(counts)))
    if len(always) <= most:
        assert always <= set(known) <= always | set(counts)
        chosen = [counts[token] for token in set(known) - always]
        left = [count for token, count in counts.items() if token not in known]
        assert not chosen or not left or min(chosen) >= max(left)


def test_windows_are_the_text_in_the_numbers_of_the_draft() -> None:
    text = texts(20 * WINDOW + 7)
    known = np.array([END, 3, 5, 10, 20, 39])
    cut = samples(text, known, END)
    windows = [*cut.learned.tolist(), *cut.held_back.tolist()]
    assert {len(window) for window in windows} == {WINDOW + 1}
    numbers = {int(token): number for number, token in enumerate(known)}
    expected = [
        0 if token == BREAK else numbers.get(token, len(known)) for token in text[: 20 * WINDOW + 1].tolist()
    ]
    # A window begins with the token that ended the one before: each token but the first is predicted once.
    assert [windows[0][0], *(number for window in windows for number in window[1:])] == expected
    assert all(before[-1] == after[0] for before, after in pairwise(windows))


def test_a_token_beyond_the_last_known_one_is_unknown() -> None:
    text = np.full(LEAST, 5)
    text[3::4] = 1_000
    assert samples(text, np.array([END, 5]), END).learned[0, :4].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize(("windows", "held_back"), [(9, 1), (50, 1), (100, 3)])
def test_what_is_held_back_is_not_learned_from(windows: int, held_back: int) -> None:
    text = np.arange(10, 10 + windows * WINDOW + 1)
    cut = samples(text, np.array([END, *text]), END)
    assert (len(cut.learned), len(cut.held_back)) == (windows - held_back, held_back)
    # All tokens differ; the one between the two ends the last window and begins the next.
    assert np.intersect1d(cut.learned, cut.held_back).tolist() == [cut.learned[-1, -1]]


def test_too_little_text_says_how_much_there_is_and_what_to_do() -> None:
    known = np.array([END, 3, 4, 5])
    assert len(samples(texts(LEAST), known, END).learned) == 8
    with pytest.raises(TooLittleText, match=r"written 2,304 tokens .* needs 2,305 .* --history") as caught:
        samples(texts(LEAST - 1), known, END)
    assert "Chat more" in str(caught.value)
    with pytest.raises(TooLittleText, match="written 1 tokens"):
        samples(np.array([BREAK]), known, END)
