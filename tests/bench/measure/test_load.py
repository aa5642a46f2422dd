"""Users who queue for one engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from hierchat.bench.arms.arm import Answer
from hierchat.bench.arms.own import OwnArm
from hierchat.bench.measure import load
from hierchat.bench.measure.load import measure
from hierchat.config import GenerationSettings
from hierchat.engine.scheduler import Scheduler

from ...chat.tiny import hosted
from ...verify.fakes import SETTINGS, questions, tell
from ..fakes import FakeArm


class SlowArm(FakeArm):
    """A tenth of a second for each reply, on a clock of its own; it answers once all that will ask have asked."""

    def __init__(self, users: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("slow")
        self.users, self.now = users, 0.0
        self.scheduler = Scheduler()
        monkeypatch.setattr(load, "Scheduler", lambda most: self.scheduler)
        monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        left = 9 - self.asked  # eight questions behind the one that warms up
        while self.asked and len(self.scheduler._waiting) + 1 < min(self.users, left):
            time.sleep(0.001)
        self.now += 0.1
        return super().answer(prompt, settings)


@pytest.mark.parametrize(("users", "waited"), [(1, 0.0), (4, 0.3)])
def test_who_queues_waits(users: int, waited: float, monkeypatch: pytest.MonkeyPatch) -> None:
    arm = SlowArm(users, monkeypatch)
    (figures,) = measure(hosted(), [arm], questions(8), SETTINGS, [users], tell)
    assert (figures["replies"], figures["tokens"]) == (8, 24)
    assert figures["waited_seconds"] == pytest.approx(waited)
    assert figures["reply_seconds"] == pytest.approx(waited + 0.1)
    assert figures["tokens_per_second"] == pytest.approx(24 / 0.8)


def test_own_arms_under_load() -> None:
    arms = [OwnArm("vanilla", hosted()), OwnArm("hierchat", hosted())]
    figures = measure(hosted(), arms, questions(4, turns=2), SETTINGS, [2], tell)
    assert [(row["arm"], row["replies"]) for row in figures] == [("vanilla", 8), ("hierchat", 8)]
    assert figures[0]["tokens"] == figures[1]["tokens"] > 0


def test_an_error_ends_all() -> None:
    with pytest.raises(RuntimeError, match="out of breath"):
        measure(hosted(), [FakeArm("weak", fails=3)], questions(8), SETTINGS, [2], tell)
