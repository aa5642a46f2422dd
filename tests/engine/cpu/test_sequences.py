"""Several texts of one runner: those that begin alike hold the same pages, and none ever sees what another writes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.runner import Segment, TooManySequences
from tests.testing.tiny import CONTEXT, block_model, random_tokens, tiny_model

TEXTS = 3
RUNNER = CpuRunner(block_model(tiny_model("llama")), context_length=CONTEXT, threads=2, sequences=TEXTS + 1)


@pytest.fixture
def three() -> Iterator[list[CpuSequence]]:
    sequences = [RUNNER.open() for _ in range(TEXTS)]
    yield sequences
    for sequence in sequences:
        sequence.close()


def elsewhere(kind: str = "llama") -> CpuSequence:
    """Of another runner, as a rounded copy is."""
    return CpuRunner(block_model(tiny_model(kind)), context_length=CONTEXT).open()  # type: ignore[arg-type]


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


def test_rows_of_blocks_of_any_width_keep_their_bits(three: list[CpuSequence]) -> None:
    starts, trees = (5, 130, 127), ((-1, 0, 0, 2), (-1,), (-1, 0, 1, 1, 0, 4, 5))
    blocks = []
    for number, (sequence, start, tree) in enumerate(zip(three, starts, trees, strict=True)):
        sequence.read(random_tokens(start, number))
        blocks.append(Segment(sequence, random_tokens(len(tree), number + 9), tree))
    expected = [np.array(block.sequence.forward(block.tokens, block.parents)) for block in blocks]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2)):
        together = RUNNER.forward([blocks[number] for number in order])
        for number, rows in zip(order, together, strict=True):
            np.testing.assert_array_equal(np.asarray(rows), expected[number])


def test_no_more_sequences_than_there_are_slots(three: list[CpuSequence]) -> None:
    held = RUNNER.open()
    with pytest.raises(TooManySequences, match="4 sequences"):
        RUNNER.open()
    held.close()
    again = RUNNER.open()
    assert again.tokens == []
    again.close()


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
        sequence.close()
    assert RUNNER.pages.free == free


@pytest.mark.parametrize(
    ("read", "length"), [(0, 5), (0, CHUNK), (CHUNK - 2, CHUNK + 3), (50, 2 * CHUNK + 7), (9, 9)]
)
def test_what_a_runner_of_the_same_shape_takes_over_is_as_if_it_had_been_read(
    three: list[CpuSequence], read: int, length: int
) -> None:
    text, one, other = random_tokens(length), three[0], elsewhere()
    one.read(text)
    before = look(one)
    other.read(text[:read])
    assert other.adopt(one, text[read:])
    assert other.tokens == text
    assert np.array_equal(look(other), before)
    other.rollback(length // 2)
    other.read(random_tokens(20, 2))
    assert np.array_equal(look(one), before)  # the original keeps its own


def test_another_text_or_shape_is_not_taken_over(three: list[CpuSequence]) -> None:
    one = three[0]
    one.read([1, 2, 3])
    for other in (three[1], elsewhere()):
        other.read([1, 2])
        for tokens in ([4], [3, 5]):
            assert not other.adopt(one, tokens)
        assert other.tokens == [1, 2]
        assert other.adopt(one, ())  # it could
    assert not elsewhere("qwen3").adopt(one, [1, 2, 3])
