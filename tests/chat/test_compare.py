"""One prompt answered in two ways, and the verdict."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hierchat.chat.comparison import (
    CompareFrame,
    Comparison,
    Configuration,
    WrongConfiguration,
    configuration,
    differences,
    summed,
)
from hierchat.chat.frames import Arm
from hierchat.chat.in_progress import Question
from hierchat.engine.verification import ArrayRows
from hierchat.models.progress import ModelError
from hierchat.runtime.model_slot import ModelSlot
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from tests.testing.tiny_chat import catalogue, served, settle, spy

from .conftest import Talk, talk_on

ORDERS: list[tuple[Arm, Arm]] = [("first", "second"), ("second", "first")]


@pytest.fixture(params=ORDERS, ids=lambda order: f"{order[0]} first")
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Arm, Arm]:
    reverse = int(request.param[0] == "second")
    monkeypatch.setattr("hierchat.chat.comparing.secrets.randbelow", lambda below: reverse)
    return request.param


@pytest.mark.parametrize(("share", "says"), [(0.2, False), (0.6, True)])
def test_a_pace_from_one_run_each_on_a_busy_machine_says_so(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, share: float, says: bool
) -> None:
    monkeypatch.setattr("hierchat.chat.comparing.OtherPrograms.share", lambda self: share)
    last = list(talk.comparing("hello", max_new_tokens=64))[-1]
    doubt = "Other programs used 60 % of the processor meanwhile, and each side ran once: compare again"
    assert (doubt in last.verdict.sentence) is says
    told = r"Word for word the same\. (“With drafts” is \d+\.\d\u00d7 (faster|slower)|Both are as fast)\."
    assert re.match(told, last.verdict.sentence)
    assert Comparison.from_json(1, "hello", 0.0, last.result.to_json()).verdict.others == share


def bend(talk: Talk, at: int) -> None:
    """Plain decoding prefers another token at this index of the reply."""
    forward = talk.sequence.forward
    committed = len(talk.model.prompts.build([PromptMessage("user", "hello")], 24).ids) - 1 + at

    def bent(tokens: Any, parents: Any, *, padded: bool = True) -> Any:
        rows = forward(tokens, parents, padded=padded)
        if not padded and len(talk.sequence.tokens) == committed:
            changed = np.array(rows)
            changed[0, int(changed[0].argmin())] = 1e4
            return ArrayRows(changed)
        return rows

    talk.sequence.forward = bent


def test_identical(talk: Talk, order: tuple[Arm, Arm]) -> None:
    talk.send("hello")  # so that history drafts
    talk = talk.other()
    frames = list(talk.comparing("hello"))
    last = frames[-1]
    assert last.running is None
    assert last.verdict.identical
    assert (last.verdict.tokens, last.verdict.logit_gap) == (24, None)
    assert last.verdict.sentence == "Word for word the same."  # too short for a pace
    assert last.verdict.speedup > 0
    assert last.verdict.exact is talk.sequence.exact is True
    assert last.arms["first"].text == last.arms["second"].text
    assert last.arms["first"].figures.tokens_per_forward == 1
    assert last.arms["second"].figures.tokens_per_forward > 1


@pytest.mark.usefixtures("every_frame")
def test_both_arms_are_streamed_and_kept_and_the_second_reply_is_stored(
    talk: Talk, order: tuple[Arm, Arm]
) -> None:
    frames = list(talk.comparing("hello"))
    running = [frame.running for frame in frames if frame.running]
    assert running == sorted(running, key=order.index)
    assert set(running) == set(order)
    first = [frame for frame in frames if frame.running == order[0]]
    assert all(frame.arms[order[1]].phase == "waiting" for frame in first)
    assert [frame.verdict for frame in frames[:-1]] == [None] * (len(frames) - 1)
    assert {arm.phase for arm in frames[-1].arms.values()} == {"done"}
    last = frames[-1]
    question, reply = talk.messages()
    assert (question.text, reply.text, reply.state) == ("hello", last.arms["second"].text, "complete")
    assert (last.arms["first"].message_id, last.arms["second"].message_id) == (None, reply.id)
    assert len(reply.siblings) == 1
    assert talk.store.replies.turn(talk.user, reply.id).begun.drafted
    plain, drafted = last.arms["first"].figures, last.arms["second"].figures
    assert plain.baseline == drafted.baseline == "measured"
    assert plain.speedup == pytest.approx(1)
    assert drafted.speedup == pytest.approx(last.verdict.speedup)
    assert drafted.baseline_tokens_per_second == pytest.approx(plain.tokens_per_second)
    (stored,) = talk.store.comparisons.all(talk.user, 10)
    read = Comparison.from_json(stored.id, stored.question, stored.created_at, stored.result)
    assert (read.id, read.question, read.alone, read.verdict) == (last.result.id, "hello", True, last.verdict)
    for arm in ("first", "second"):
        side, shown = read.sides[arm], last.arms[arm]
        assert (side.text, side.model, side.revision) == (shown.text, "tiny", "key of tiny")
        assert side.figures.shares == shown.figures.shares
        assert side.moments[-1][1:] == (24, len(side.text))
        assert side.moments == sorted(side.moments)
    assert [read.sides[arm].name for arm in ("first", "second")] == ["Without drafts", "With drafts"]


def test_the_first_difference_and_its_gap(talk: Talk, order: tuple[Arm, Arm]) -> None:
    bend(talk, 5)
    verdict = list(talk.comparing("hello", temperature=0))[-1].verdict
    assert not verdict.identical
    assert verdict.tokens == 5
    assert verdict.logit_gap > 0
    assert verdict.precise == f"First difference at token 6 (logit gap {verdict.logit_gap:.4f})."
    assert verdict.sentence.startswith("The words differ from word ")


def test_neither_arm_profits_from_the_other(talk: Talk, order: tuple[Arm, Arm]) -> None:
    first = talk.send("one")
    held = len(talk.sequence.tokens)
    read: list[int] = []
    spy(talk.sequence, "read", lambda tokens, hidden: read.append(len(tokens)))
    last = list(talk.comparing("What is the longest river?", first.message_id))[-1]
    assert read == [last.arms["first"].prompt_tokens - 1 - held] * 2


def until_token(frames: Any, arm: Arm, tokens: int) -> CompareFrame:
    for frame in frames:
        if frame.arms[arm].figures.tokens >= tokens:
            return frame
    raise AssertionError("too short")


def test_stop_in_the_first_arm(talk: Talk, order: tuple[Arm, Arm]) -> None:
    frames = talk.comparing("hello", max_new_tokens=200)
    until_token(frames, order[0], 5)
    talk.stop.set()
    last = list(frames)[-1]
    assert last.verdict.sentence == "Stopped."
    assert last.verdict.speedup is None
    assert last.arms[order[0]].finish == "stopped"
    assert last.arms[order[1]].phase == "waiting"
    stored = [message.state for message in talk.messages()]
    assert stored == (["complete", "stopped"] if order[0] == "second" else ["complete"])


def test_stop_in_the_second_arm(talk: Talk, order: tuple[Arm, Arm]) -> None:
    frames = talk.comparing("hello", max_new_tokens=60)
    until_token(frames, order[1], 5)
    talk.stop.set()
    last = list(frames)[-1]
    compared = last.arms[order[1]].figures.tokens
    assert last.verdict.identical
    assert last.verdict.sentence == f"Stopped. Word for word the same so far, {compared} tokens."


@pytest.mark.parametrize("arm", [0, 1])
def test_a_full_memory_keeps_both_texts(talk: Talk, order: tuple[Arm, Arm], arm: int) -> None:
    left = 5 + 40 * arm

    def fail(*_: Any, **__: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise MemoryError

    talk.model.engine.measure_vanilla = lambda *_, **__: 1.0
    spy(talk.sequence, "forward", fail)
    last = list(talk.comparing("hello", max_new_tokens=40))[-1]
    assert last.verdict is None
    failed = last.arms[order[arm]]
    assert (failed.phase, failed.finish) == ("done", "error")
    assert failed.notice.startswith("Memory ran out")
    assert failed.text
    if order[arm] == "second":
        assert talk.messages()[-1].text == failed.text
    if arm:
        assert last.arms[order[0]].finish == "length"


def pair(first: dict[str, Any], second: dict[str, Any]) -> dict[Arm, Configuration]:
    return {"first": configuration(first), "second": configuration(second)}


def compared(talk: Talk, pair: dict[Arm, Configuration], **settings: Any) -> list[CompareFrame]:
    question = Question(talk.conversation, None, "hello")
    return list(talk.service.compare(talk.user, question, talk._settings(settings), talk.stop, pair))


def test_each_side_drafts_from_what_was_chosen(talk: Talk, order: tuple[Arm, Arm]) -> None:
    talk.send("hello")  # an earlier chat holds the whole reply
    talk = talk.other()
    last = compared(talk, pair({"databases": "chat"}, {"databases": "replies"}))[-1]
    assert last.verdict.identical
    assert set(last.arms["first"].figures.shares) <= {"target", "context"}
    assert "history" in last.arms["second"].figures.shares
    assert last.arms["second"].figures.tokens_per_forward > last.arms["first"].figures.tokens_per_forward


def test_nothing_that_one_side_learned_helps_the_other(talk: Talk, order: tuple[Arm, Arm]) -> None:
    last = compared(talk, pair({}, {}))[-1]
    first, second = last.arms["first"].figures, last.arms["second"].figures
    assert (first.shares, first.tokens_per_forward) == (second.shares, second.tokens_per_forward)
    assert {frame.name for frame in last.arms.values()} == {"With drafts (1)", "With drafts (2)"}


def test_other_words_where_the_seeds_differ_are_no_fault(talk: Talk) -> None:
    last = compared(talk, pair({"seed": 1}, {"seed": "2"}))[-1]
    assert not last.verdict.identical
    assert last.verdict.logit_gap is None
    assert "as expected: the seeds differ." in last.verdict.sentence
    greedy = compared(talk.other(), pair({"seed": 1}, {"seed": 2}), temperature=0)[-1]
    assert greedy.verdict.identical


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": "-1"}, "The temperature of a comparison must be between 0 and 10."),
        ({"temperature": "nan"}, "The temperature of a comparison must be between 0 and 10."),
        ({"seed": "-1"}, "The seed of a comparison must be a whole number, at least 0."),
        ({"seed": "1.5"}, "Temperature and seed of a comparison must be numbers, the seed a whole one."),
        ({"databases": "all"}, "A comparison drafts from nothing, this chat, earlier chats or texts."),
    ],
)
def test_a_wrong_configuration_is_refused_in_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongConfiguration) as error:
        configuration(given)
    assert str(error.value) == said


def test_two_models_one_after_the_other_and_back(store: Store) -> None:
    slot = ModelSlot(catalogue("tiny", "other"), load=lambda name, _: served(name, seed=len(name)))
    slot.start("tiny")
    settle(slot)
    talk = talk_on(store, slot)
    frames = compared(talk, pair({"model": "other"}, {}))
    last = frames[-1]
    assert any("Loading other" in (frame.arms["first"].notice or "") for frame in frames)
    assert {arm: side.model for arm, side in last.result.sides.items()} == {
        "first": "other",
        "second": "tiny",
    }
    assert last.result.verdict.exact is None
    assert "as expected: the models differ." in last.verdict.sentence
    assert talk.messages()[-1].text == last.arms["second"].text
    settle(slot)
    while slot.status.name != "tiny" or slot.status.phase != "ready":
        settle(slot)
    assert talk.send("and now?", talk.messages()[-1].id).finish == "length"


def test_a_second_model_that_cannot_be_loaded(store: Store) -> None:
    def load(name: str, report: Any) -> Any:
        if name == "other":
            raise ModelError("other is too large.")
        return served(name)

    slot = ModelSlot(catalogue("tiny", "other"), load=load)
    slot.start("tiny")
    settle(slot)
    talk = talk_on(store, slot)
    last = compared(talk, pair({}, {"model": "other"}))[-1]
    assert last.arms["first"].finish == "length"
    assert last.arms["second"].notice.startswith("other is too large.")
    assert (last.result, talk.store.comparisons.all(talk.user, 9)) == (None, [])


def test_a_long_replay_is_kept_in_fewer_steps() -> None:
    moments = [(at * 80, at, at * 5) for at in range(1, 2001)]
    read = summed(differences(moments))
    assert len(read) <= 601
    assert (read[0], read[-1]) == (moments[0], moments[-1])
