"""Users who queue for one engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from hierchat.bench.arms import Answer, OwnArm
from hierchat.bench.load import Queue, measure
from hierchat.config import GenerationSettings

from ..chat.tiny import hosted
from .fakes import SETTINGS, FakeArm, questions, tell


def test_in_the_order_of_arrival_and_one_at_a_time() -> None:
    queue, order, within = Queue(), list[int](), list[int]()

    def use(number: int) -> None:
        with queue.turn():
            within.append(number)
            assert len(within) == 1
            time.sleep(0.01)
            order.append(number)
            within.clear()

    with queue.turn():
        threads = []
        for number in range(5):
            threads.append(threading.Thread(target=use, args=(number,)))
            threads[-1].start()
            while len(queue._waiting) < number + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


class SlowArm(FakeArm):
    """A tenth of a second for each reply."""

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        time.sleep(0.1)
        return super().answer(prompt, settings)


def test_who_queues_waits() -> None:
    arm = SlowArm("slow")
    alone, four = measure(hosted(), [arm], questions(8), SETTINGS, [1, 4], tell)
    assert (alone["replies"], four["replies"], alone["tokens"]) == (8, 8, 24)
    assert alone["waited_seconds"] < 0.05 < four["waited_seconds"]
    assert four["reply_seconds"] > 2 * alone["reply_seconds"]


def test_own_arms_under_load() -> None:
    arms = [OwnArm("vanilla", hosted()), OwnArm("hierchat", hosted())]
    figures = measure(hosted(), arms, questions(4, turns=2), SETTINGS, [2], tell)
    assert [(row["arm"], row["replies"]) for row in figures] == [("vanilla", 8), ("hierchat", 8)]
    assert figures[0]["tokens"] == figures[1]["tokens"] > 0


def test_an_error_ends_all() -> None:
    with pytest.raises(RuntimeError, match="out of breath"):
        measure(hosted(), [FakeArm("weak", fails=3)], questions(8), SETTINGS, [2], tell)
