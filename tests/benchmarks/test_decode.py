"""benchmarks decode and log: who is asked what, in what order, with which history."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import Answer, rotated
from benchmarks.decode import Measured, measure
from hierchat.checks.runs import Question
from hierchat.config import GenerationSettings
from hierchat.runtime.served_model import ServedModel
from tests.testing.questions import SETTINGS, questions, tell
from tests.testing.tiny_chat import served as tiny

WARM_UPS = 2


class FakeArm:
    """Answers at once; remembers what it was asked."""

    def __init__(self, name: str, log: list[str] | None = None) -> None:
        self.name = name
        self.log = log if log is not None else []
        self.prompts: list[list[int]] = []
        self.history: list[list[int]] = []
        self.asked = 0

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        self.asked += 1
        self.log.append(self.name)
        self.prompts.append(list(prompt))
        return Answer([5, 6, 7], 0.5, 0.25, 2, 1.0, {"target": 2, "history": 1})

    def learn(self, reply: Sequence[int], lead: Sequence[int]) -> None:
        self.history.append(list(reply))

    def forget(self) -> None:
        self.history = []

    def close(self) -> None:
        pass


def result(folder: Path, names: Sequence[str]) -> Measured:
    return Measured(folder / "out.json", {"machine": {}, "settings": {}}, names)


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return tiny()


def run(
    served: ServedModel, arms: list[Any], asked: list[Question], out: Measured, carry: bool = False
) -> None:
    measure(served, arms, asked, SETTINGS, out, tell, carry=carry)


def test_each_arm_leads_in_turn(served: ServedModel, tmp_path: Path) -> None:
    log: list[str] = []
    arms = [FakeArm(name, log) for name in "abc"]
    run(served, arms, questions(6), result(tmp_path, "abc"))
    orders = ["".join(log[at : at + 3]) for at in range(3 * WARM_UPS, len(log), 3)]
    assert orders == ["abc", "bca", "cab", "bca", "cab", "abc"]
    many: list[Any] = [FakeArm(name) for name in "abcdef"]
    assert {rotated(many, 6 * turn)[0].name for turn in range(6)} == set("abcdef")  # groups come by six


def test_history_carries_along_in_a_log_only_and_what_does_not_fit_is_skipped(
    served: ServedModel, tmp_path: Path
) -> None:
    for carry, held in ((True, 6), (False, 2)):
        arm = FakeArm("a")
        long = Question(0, "long", ("no " * 2000,), "qa")
        out = result(tmp_path, "a")
        run(served, [arm], [long, *questions(4, turns=2)[1:]], out, carry)
        assert len(arm.history) == held
        assert [row.get("skipped", "")[:12] for row in out.rows] == ["This message", "", "", ""]
        first, second = arm.prompts[WARM_UPS : WARM_UPS + 2]
        assert second[: len(first) + 3] == [*first, 5, 6, 7]  # a prompt holds the arm's own replies


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(served: ServedModel, tmp_path: Path) -> None:
    class Interrupted(FakeArm):
        def answer(self, *asked: Any) -> Any:
            if len(self.prompts) == WARM_UPS + 2:
                raise KeyboardInterrupt
            return super().answer(*asked)

    out = result(tmp_path, ["a"])
    with pytest.raises(KeyboardInterrupt):
        run(served, [Interrupted("a")], questions(4), out, carry=True)
    rows = json.loads(out.path.read_text())["questions"]
    assert [row["question"] for row in rows] == [0, 1]

    again = Measured(out.path, out.head, out.names, rows)
    arm = FakeArm("a")
    run(served, [arm], questions(4), again, carry=True)
    assert arm.asked == WARM_UPS + 2
    assert len(arm.history) == 4  # the earlier replies, too
    assert [row["question"] for row in json.loads(out.path.read_text())["questions"]] == [0, 1, 2, 3]
