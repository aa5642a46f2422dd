"""Sequences keep their texts from reply to reply, each for its own user."""

from __future__ import annotations

import pytest

from hierchat.engine.batching import Pool
from hierchat.engine.cpu.runner import CpuRunner
from hierchat.engine.runner import TooManySequences
from hierchat.models.formats.blocks import pack
from tests.testing.tiny import CONTEXT, block_model, random_tokens, tiny_model


@pytest.fixture(scope="module")
def runner() -> CpuRunner:
    model = block_model(tiny_model("llama"), lambda floats: pack(floats, 8))
    return CpuRunner(model, context_length=CONTEXT, threads=1, sequences=64)


@pytest.fixture
def pool(runner: CpuRunner) -> Pool:
    return Pool(runner.open(), 3)


def read(pool: Pool, text: list[int], user: int | None = None) -> int:
    """A reply to this text; how much of it was held."""
    with pool.sequence(text, user) as sequence:
        held = len(sequence.tokens)
        sequence.rollback(held)
        sequence.read(text[held:])
    return held


def test_conversations_keep_their_slots_side_by_side(pool: Pool) -> None:
    texts = [random_tokens(60, number) for number in range(3)]
    assert [read(pool, text) for text in texts] == [0, 0, 0]
    assert [read(pool, [*text, 7]) for text in texts] == [60, 60, 60]


def test_the_least_recently_used_gives_its_text_up(pool: Pool) -> None:
    texts = [random_tokens(60, number) for number in range(4)]
    for text in texts:
        read(pool, text)
    assert [pool.shared(text) for text in texts] == [0, 60, 60, 60]


def test_a_common_beginning_is_taken_over_and_stays_with_its_owner(pool: Pool) -> None:
    system = random_tokens(40, 1)
    first, second = [*system, *random_tokens(90, 2)], [*system, *random_tokens(90, 3)]
    read(pool, first)
    with pool.sequence(second) as sequence:
        held = sequence.tokens[:]
        sequence.rollback(min(len(held), 40))
        assert sequence.tokens == system
    assert pool.shared(first) == len(first)


def test_what_was_read_for_one_user_is_nothing_to_another(pool: Pool) -> None:
    text = random_tokens(80, 1)
    read(pool, text, user=1)
    assert pool.shared(text, user=1) == 80
    assert pool.shared(text, user=2) == 0
    assert pool.shared(text) == 0
    assert read(pool, text, user=2) == 0
    for user in (3, 4, 5):
        assert read(pool, text, user) == 0  # also in a sequence that held it for another


def test_no_more_replies_than_sequences(pool: Pool) -> None:
    taken = [pool.take(random_tokens(9, number), number) for number in range(3)]
    with pytest.raises(TooManySequences, match="3 replies"):
        pool.take([1], 9)
    pool.give(taken[0])
    assert pool.take([1], 9) is taken[0]


def test_forget_and_clear(pool: Pool) -> None:
    text = random_tokens(50, 1)
    read(pool, text)
    pool.forget(text, 20)
    assert pool.shared(text) == 20
    pool.clear()
    assert pool.shared(text) == 0
