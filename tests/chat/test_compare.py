"""One prompt answered in two ways, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from hierchat.chat.comparison import Configuration
from hierchat.chat.frames import Arm, CompareFrame
from hierchat.chat.in_progress import NewQuestion
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
    monkeypatch.setattr("hierchat.chat.comparison.secrets.randbelow", lambda below: reverse)
    return request.param


def test_long_replies_are_compared_by_their_pace(talk: Talk) -> None:
    last = list(talk.comparing("hello", max_new_tokens=64))[-1]
    told = r"Word for word the same\. (“With drafts” is \d+\.\d\u00d7 (faster|slower)|Both are as fast)\."
    assert re.fullmatch(told, last.verdict.sentence)


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


def test_both_sides_are_streamed_and_judged_and_the_second_reply_is_stored(
    talk: Talk, order: tuple[Arm, Arm]
) -> None:
    talk.send("hello")  # so that history drafts
    talk = talk.other()
    *frames, last = list(talk.comparing("hello"))
    running = [frame.running for frame in frames if frame.running]
    assert running == sorted(running, key=order.index)
    assert set(running) == set(order)
    begun = [frame for frame in frames if frame.running == order[0]]
    assert all(frame.arms[order[1]].phase == "waiting" for frame in begun)
    assert {frame.verdict for frame in frames} == {None}
    first, second = last.arms["first"], last.arms["second"]
    assert (last.running, first.phase, second.phase) == (None, "done", "done")
    assert last.verdict.identical
    assert last.verdict.sentence == "Word for word the same. The replies were too short to measure."
    assert last.verdict.speedup > 0
    assert last.verdict.exact is talk.sequence.runner.exact is True
    assert first.text == second.text

    question, reply = talk.messages()
    assert (question.text, reply.text, reply.state) == ("hello", second.text, "complete")
    assert (first.message_id, second.message_id) == (None, reply.id)
    assert len(reply.siblings) == 1
    assert talk.store.replies.turn(talk.user, reply.id).begun.drafted
    plain, drafted = first.figures, second.figures
    assert plain.tokens_per_forward == 1 < drafted.tokens_per_forward
    assert plain.baseline == drafted.baseline == "measured"
    assert plain.speedup == pytest.approx(1)
    assert drafted.speedup == pytest.approx(last.verdict.speedup)
    assert drafted.baseline_tokens_per_second == pytest.approx(plain.tokens_per_second)


def test_the_first_difference_and_both_read_the_same_prompt(talk: Talk, order: tuple[Arm, Arm]) -> None:
    bend(talk, 5)
    read: list[int] = []
    spy(talk.sequence, "read", lambda tokens, hidden: read.append(len(tokens)))
    last = list(talk.comparing("hello", temperature=0))[-1]
    verdict = last.verdict
    assert not verdict.identical
    assert verdict.sentence.startswith("The words differ from word ")
    assert read[:2] == [last.arms["first"].prompt_tokens - 1] * 2


@pytest.mark.parametrize("arm", [0, 1])
def test_stopped_in_either_side(talk: Talk, order: tuple[Arm, Arm], arm: int) -> None:
    frames = talk.comparing("hello", max_new_tokens=60)
    next(frame for frame in frames if frame.arms[order[arm]].figures.tokens >= 5)
    talk.stop.set()
    last = list(frames)[-1]
    assert (last.verdict.speedup, last.verdict.sentence) == (None, "Stopped.")
    if arm:
        assert last.verdict.identical
    else:
        assert (last.arms[order[0]].finish, last.arms[order[1]].phase) == ("stopped", "waiting")
        stored = [message.state for message in talk.messages()]
        assert stored == (["complete", "stopped"] if order[0] == "second" else ["complete"])


@pytest.mark.parametrize("arm", [0, 1])
def test_a_full_memory_keeps_both_texts(talk: Talk, order: tuple[Arm, Arm], arm: int) -> None:
    forwards = count(1)

    def fail(*_: Any, **__: Any) -> None:
        if next(forwards) == 5 + 24 * arm:
            raise MemoryError

    talk.model.engine.measure_vanilla = lambda *_, **__: 1.0
    spy(talk.sequence, "forward", fail)
    last = list(talk.comparing("hello"))[-1]
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
    return {"first": Configuration(**first), "second": Configuration(**second)}


def compared(talk: Talk, pair: dict[Arm, Configuration], **settings: Any) -> list[CompareFrame]:
    question = NewQuestion(talk.conversation, None, "hello")
    return list(talk.service.compare(talk.user, question, talk._settings(settings), talk.stop, pair))


def test_each_side_drafts_if_that_was_chosen(talk: Talk, order: tuple[Arm, Arm]) -> None:
    talk.send("hello")  # an earlier chat holds the whole reply
    talk = talk.other()
    last = compared(talk, pair({}, {"drafts": ""}))[-1]
    assert last.verdict.identical
    assert "history" in last.arms["first"].figures.shares
    assert set(last.arms["second"].figures.shares) == {"target"}
    assert last.arms["first"].figures.tokens_per_forward > last.arms["second"].figures.tokens_per_forward


def test_nothing_that_one_side_learned_helps_the_other(talk: Talk, order: tuple[Arm, Arm]) -> None:
    last = compared(talk, pair({}, {}))[-1]
    first, second = last.arms["first"].figures, last.arms["second"].figures
    assert (first.shares, first.tokens_per_forward) == (second.shares, second.tokens_per_forward)
    assert {frame.name for frame in last.arms.values()} == {"With drafts (1)", "With drafts (2)"}


def test_two_models_one_after_the_other_and_back(store: Store) -> None:
    talk = talk_with(store, lambda name, report: served(name, seed=len(name)))
    slot = talk.service.slot
    frames = compared(talk, pair({"model": "other"}, {}))
    last = frames[-1]
    assert any("Loading other" in (frame.arms["first"].notice or "") for frame in frames)
    assert last.verdict.exact is None
    assert "as expected: the models differ." in last.verdict.sentence
    assert talk.messages()[-1].text == last.arms["second"].text
    while slot.status.name != "tiny" or slot.status.phase != "ready":
        settle(slot)
    assert talk.send("and now?", talk.messages()[-1].id, max_new_tokens=4).finish == "length"


def talk_with(store: Store, load: Callable[[str, Any], Any]) -> Talk:
    """Two models, of which the first one is loaded."""
    slot = ModelSlot(catalogue("tiny", "other"), load=load)
    slot.start("tiny")
    return talk_on(store, settle(slot))


def test_a_second_model_that_cannot_be_loaded(store: Store) -> None:
    def load(name: str, report: Any) -> Any:
        if name == "other":
            raise ModelError("other is too large.")
        return served(name)

    talk = talk_with(store, load)
    last = compared(talk, pair({}, {"model": "other"}))[-1]
    assert last.arms["first"].finish == "length"
    assert last.arms["second"].notice.startswith("other is too large.")
    assert last.verdict is None
