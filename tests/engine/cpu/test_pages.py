"""Texts that begin alike hold the same pages, and none ever sees what another one writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from tests.testing.tiny import CONTEXT, block_model, random_tokens, tiny_model

TEXTS = 3
RUNNER = CpuRunner(block_model(tiny_model("llama")), context_length=CONTEXT, threads=1, sequences=TEXTS + 1)


@pytest.fixture
def three() -> list[CpuSequence]:
    sequences = [RUNNER.open() for _ in range(TEXTS)]
    yield sequences
    for sequence in sequences:
        sequence.close()


def look(sequence: CpuSequence) -> np.ndarray:
    """What it thinks comes next."""
    return np.asarray(sequence.forward([5, 6], [-1, 0])).copy()


def read_anew(tokens: list[int]) -> np.ndarray:
    sequence = RUNNER.open()
    try:
        sequence.read(tokens)
        return look(sequence)
    finally:
        sequence.close()


def test_a_common_beginning_is_held_once(three: list[CpuSequence]) -> None:
    one, other, third = three
    free = RUNNER.pages.free
    one.read(random_tokens(2 * CHUNK + 9))
    other.adopt(one, one.tokens)
    third.adopt(other, one.tokens[: 2 * CHUNK])
    assert other.pages[:2] == third.pages == one.pages[:2]
    assert RUNNER.pages.free == free - 4  # two that all hold, and the end of each of two
    one.close()
    three[0] = RUNNER.open()
    assert np.array_equal(look(other), read_anew(other.tokens))


def test_whoever_goes_back_into_a_shared_page_gets_one_of_its_own(three: list[CpuSequence]) -> None:
    one, other, _ = three
    text = random_tokens(CHUNK + 20)
    one.read(text)
    other.adopt(one, text)
    other.rollback(50)
    assert other.pages == one.pages[:1]
    other.read(random_tokens(30, 1))
    assert other.pages[0] != one.pages[0]
    assert np.array_equal(look(one), read_anew(text))
    assert np.array_equal(look(other), read_anew(other.tokens))


def test_more_is_taken_over_behind_a_chunk_that_was_begun(three: list[CpuSequence]) -> None:
    one, other, _ = three
    text = random_tokens(2 * CHUNK + 30)
    one.read(text)
    other.read(text[: CHUNK + 40])
    assert other.adopt(one, text[CHUNK + 40 :])
    assert other.pages[1] == one.pages[1]
    assert other.pages[0] != one.pages[0]
    assert np.array_equal(look(other), look(one))


number = st.integers(0, TEXTS - 1)
deeds = st.lists(
    st.one_of(
        st.tuples(st.just("read"), number, st.integers(1, 90)),
        st.tuples(st.just("commit"), number, st.integers(1, 5)),
        st.tuples(st.just("rollback"), number, st.integers(0, 200)),
        st.tuples(st.just("adopt"), number, number),
    ),
    max_size=14,
)


@limits(deadline=None, max_examples=40)
@given(deeds)
def test_every_text_stays_what_it_is(deeds: list[tuple[str, int, int]]) -> None:
    free = RUNNER.pages.free
    sequences = [RUNNER.open() for _ in range(TEXTS)]
    for turn, (deed, which, size) in enumerate(deeds):
        sequence = sequences[which]
        if deed == "read":
            sequence.read(random_tokens(min(size, 300 - len(sequence.tokens)), turn))
        elif deed == "commit":
            sequence.forward(random_tokens(size + 1, turn), [-1] * (size + 1))
            sequence.commit([size])
        elif deed == "rollback":
            sequence.rollback(min(size, len(sequence.tokens)))
        elif which != size:
            text = sequences[size].tokens
            sequence.rollback(0 if sequence.tokens != text[: len(sequence.tokens)] else len(sequence.tokens))
            assert sequence.adopt(sequences[size], text[len(sequence.tokens) :])
    for sequence in sequences:
        if sequence.tokens:
            assert np.array_equal(look(sequence), read_anew(sequence.tokens))
    for sequence in sequences:
        sequence.close()
    assert RUNNER.pages.free == free
