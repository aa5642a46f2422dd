"""Several texts of one runner: those that begin alike hold the same pages, and none ever sees what another writes, as
tests/fuzz/sequence_machine.py tries in any order."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from hierchat.engine.cpu.memory import CHUNK
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.cpu.sequence import CpuSequence
from hierchat.engine.runner import TooManySequences
from tests.testing.tiny import CONTEXT, Kind, block_model, random_tokens, tiny_model

TEXTS = 3


@cache
def runner_of(kind: Kind, sequences: int) -> CpuRunner:
    return CpuRunner(block_model(tiny_model(kind)), context_length=CONTEXT, threads=2, sequences=sequences)


@pytest.fixture
def runner() -> CpuRunner:
    return runner_of("llama", TEXTS + 1)


@pytest.fixture
def three(runner: CpuRunner) -> Iterator[list[CpuSequence]]:
    sequences = [runner.open() for _ in range(TEXTS)]
    yield sequences
    for sequence in sequences:
        sequence.close()


@pytest.fixture
def elsewhere() -> Iterator[CpuSequence]:
    """A sequence of another runner, as a rounded copy is."""
    sequence = runner_of("llama", 1).open()
    yield sequence
    sequence.close()


def look(sequence: CpuSequence) -> np.ndarray:
    """What it thinks comes next."""
    return np.asarray(sequence.forward([5, 6], [-1, 0])).copy()


def test_no_more_sequences_than_there_are_slots(runner: CpuRunner, three: list[CpuSequence]) -> None:
    held = runner.open()
    with pytest.raises(TooManySequences, match="4 sequences"):
        runner.open()
    held.close()
    again = runner.open()
    assert again.tokens == []
    again.close()


def test_a_common_beginning_is_held_once(runner: CpuRunner, three: list[CpuSequence]) -> None:
    one, other, third = three
    free = runner.pages.free
    one.read(random_tokens(2 * CHUNK + 9))
    before = look(one)
    other.adopt(one, one.tokens)
    third.adopt(other, one.tokens[: 2 * CHUNK])
    assert other.pages[:2] == third.pages == one.pages[:2]
    assert runner.pages.free == free - 4  # two that all hold, and the end of each of two
    one.close()
    three[0] = runner.open()
    assert np.array_equal(look(other), before)


@pytest.mark.parametrize(
    ("read", "length"), [(0, 5), (0, CHUNK), (CHUNK - 2, CHUNK + 3), (50, 2 * CHUNK + 7), (9, 9)]
)
def test_what_a_runner_of_the_same_shape_takes_over_is_as_if_it_had_been_read(
    three: list[CpuSequence], elsewhere: CpuSequence, read: int, length: int
) -> None:
    text, one = random_tokens(length), three[0]
    one.read(text)
    before = look(one)
    elsewhere.read(text[:read])
    assert elsewhere.adopt(one, text[read:])
    assert elsewhere.tokens == text
    assert np.array_equal(look(elsewhere), before)
    elsewhere.rollback(length // 2)
    elsewhere.read(random_tokens(20, 2))
    assert np.array_equal(look(one), before)  # the original keeps its own


def test_another_text_or_shape_is_not_taken_over(three: list[CpuSequence], elsewhere: CpuSequence) -> None:
    one = three[0]
    one.read([1, 2, 3])
    for other in (three[1], elsewhere):
        other.read([1, 2])
        for tokens in ([4], [3, 5]):
            assert not other.adopt(one, tokens)
        assert other.tokens == [1, 2]
        assert other.adopt(one, ())  # it could
    assert not runner_of("qwen3", 1).open().adopt(one, [1, 2, 3])
