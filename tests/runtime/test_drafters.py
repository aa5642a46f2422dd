"""What texts would bring: told by the last replies, drafted again with and without them."""

from __future__ import annotations

import pytest

from hierchat.models.progress import Progress
from hierchat.runtime import drafters as gains
from hierchat.runtime.drafters import Written, gain
from hierchat.runtime.served_model import ServedModel
from tests.testing import tiny_chat as tiny

PROMPT = list(range(3, 40))


@pytest.fixture
def served() -> ServedModel:
    found = tiny.ready_slot().model
    assert found
    return found


def reply(number: int) -> list[int]:
    """Tokens that repeat neither themselves nor the prompt."""
    return [40 + (number * 97 + at * (at + number)) % 290 for at in range(120)]


def written(count: int) -> list[Written]:
    return [(PROMPT, reply(number)) for number in range(count)]


def test_texts_that_hold_the_replies_bring_much_and_others_nothing(served: ServedModel) -> None:
    same = gain(served, written(6), [reply(number) for number in range(6)])
    assert same.replies == 6
    assert same.after > 1.5 * same.before
    other = gain(served, written(6), [[token + 500 for token in reply(1)]])
    assert other.after == other.before == same.before


def test_too_little_tells_nothing(served: ServedModel) -> None:
    assert gain(served, [], [reply(0)]) is None
    assert gain(served, written(gains.FEWEST // 120), [reply(0)]) is None
    assert gain(served, written(gains.FEWEST // 120 + 1), [reply(0)])


def test_so_many_tokens_are_tried(served: ServedModel) -> None:
    found = gain(served, written(100), [])
    assert found.replies == -(-gains.TOKENS // 120)


def test_it_can_be_stopped(served: ServedModel) -> None:
    class Stopped(Exception):
        pass

    def report(progress: Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        gain(served, written(6), [reply(0)], report)
