"""Vanilla and speculative decoding of one prompt, and the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hierchat.chat.frames import Arm, CompareFrame
from hierchat.engine.rows import ArrayRows
from hierchat.runtime.prompt import MessageTooLong, Said

from .conftest import Talk
from .tiny import spy

ORDERS: list[tuple[Arm, Arm]] = [("vanilla", "speculative"), ("speculative", "vanilla")]


@pytest.fixture(params=ORDERS, ids=lambda order: f"{order[0]} first")
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Arm, Arm]:
    set_order(request.param, monkeypatch)
    return request.param


def test_a_long_comparison_says_the_pace(talk: Talk) -> None:
    verdict = list(talk.comparing("hello", max_new_tokens=64))[-1].verdict
    assert verdict.sentence.endswith(("\u00d7 faster.", "\u00d7 slower."))


def set_order(order: tuple[Arm, Arm], monkeypatch: pytest.MonkeyPatch) -> None:
    reverse = int(order[0] == "speculative")
    monkeypatch.setattr("hierchat.chat.compare.secrets.randbelow", lambda below: reverse)


def bend(talk: Talk, at: int) -> None:
    """Plain decoding prefers another token at this index of the reply."""
    forward = talk.sequence.forward
    committed = len(talk.hosted.prompts.build([Said("user", "hello")], 24).ids) - 1 + at

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
    assert last.verdict.sentence == "Identical, 24 of 24 tokens."  # too short for a pace
    assert last.verdict.speedup > 0
    assert last.verdict.exact is talk.sequence.exact is True
    assert last.arms["vanilla"].text == last.arms["speculative"].text
    assert last.arms["vanilla"].figures.tokens_per_forward == 1
    assert last.arms["speculative"].figures.tokens_per_forward > 1


def test_both_arms_are_streamed_one_after_the_other(talk: Talk, order: tuple[Arm, Arm]) -> None:
    frames = list(talk.comparing("hello"))
    running = [frame.running for frame in frames if frame.running]
    assert running == sorted(running, key=order.index)
    assert set(running) == set(order)
    first = [frame for frame in frames if frame.running == order[0]]
    assert all(frame.arms[order[1]].phase == "waiting" for frame in first)
    assert [frame.verdict for frame in frames[:-1]] == [None] * (len(frames) - 1)
    assert {arm.phase for arm in frames[-1].arms.values()} == {"done"}


def test_the_speculative_reply_is_stored(talk: Talk, order: tuple[Arm, Arm]) -> None:
    last = list(talk.comparing("hello"))[-1]
    question, reply = talk.messages()
    assert (question.text, reply.text, reply.state) == ("hello", last.arms["speculative"].text, "complete")
    assert last.arms["speculative"].message_id == reply.id
    assert last.arms["vanilla"].message_id is None
    assert len(reply.siblings) == 1
    assert talk.store.turn(talk.user, reply.id).begun.drafted


def test_the_first_difference_and_its_gap(talk: Talk, order: tuple[Arm, Arm]) -> None:
    bend(talk, 5)
    verdict = list(talk.comparing("hello", temperature=0))[-1].verdict
    assert not verdict.identical
    assert verdict.tokens == 5
    assert verdict.logit_gap > 0
    assert verdict.sentence.startswith(f"First difference at token 6 (logit gap {verdict.logit_gap:.4f}).")


def test_the_vanilla_arm_is_the_baseline(talk: Talk, order: tuple[Arm, Arm]) -> None:
    last = list(talk.comparing("hello"))[-1]
    vanilla, speculative = last.arms["vanilla"].figures, last.arms["speculative"].figures
    assert vanilla.baseline == speculative.baseline == "measured"
    assert vanilla.speedup == pytest.approx(1)
    assert speculative.speedup == pytest.approx(last.verdict.speedup)
    assert speculative.baseline_tokens_per_second == pytest.approx(vanilla.tokens_per_second)


def test_a_shorter_arm_differs_without_a_gap(talk: Talk) -> None:
    from hierchat.chat.compare import _verdict
    from hierchat.chat.reply import Reply
    from hierchat.chat.statistics import ReplyStatistics
    from hierchat.config import GenerationSettings

    replies = []
    for length in (10, 8):
        settings = GenerationSettings(max_new_tokens=length, logit_bias={2: -100.0})
        statistics = ReplyStatistics(talk.hosted.local.decode)
        reply = Reply(talk.hosted, [5, 6, 7], settings, statistics, None)
        list(reply.frames(talk.stop, measure=False))
        replies.append(reply)
    verdict = _verdict(*replies, talk.hosted.local)
    assert (verdict.identical, verdict.tokens, verdict.logit_gap) == (False, 8, None)
    assert verdict.sentence.startswith("First difference at token 9.")


def test_neither_arm_profits_from_the_other(talk: Talk, order: tuple[Arm, Arm]) -> None:
    first = talk.send("one")
    held = len(talk.sequence.tokens)
    read: list[int] = []
    spy(talk.sequence, "read", lambda tokens: read.append(len(tokens)))
    last = list(talk.comparing("What is the longest river?", first.message_id))[-1]
    assert read == [last.arms["vanilla"].prompt_tokens - 1 - held] * 2


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
    assert stored == (["complete", "stopped"] if order[0] == "speculative" else ["complete"])


def test_stop_in_the_second_arm(talk: Talk, order: tuple[Arm, Arm]) -> None:
    frames = talk.comparing("hello", max_new_tokens=60)
    until_token(frames, order[1], 5)
    talk.stop.set()
    last = list(frames)[-1]
    compared = last.arms[order[1]].figures.tokens
    assert last.verdict.identical
    assert last.verdict.sentence == f"Stopped. Identical so far, {compared} of {compared} tokens."


def test_a_reader_who_leaves(talk: Talk, order: tuple[Arm, Arm]) -> None:
    frames = talk.comparing("hello", max_new_tokens=200)
    until_token(frames, "speculative", 5)
    frames.close()
    assert talk.messages()[-1].state == "stopped"
    assert talk.other().send("hello").finish == "length"


@pytest.mark.parametrize("arm", [0, 1])
def test_a_full_memory_keeps_both_texts(talk: Talk, order: tuple[Arm, Arm], arm: int) -> None:
    left = 5 + 40 * arm

    def fail(*_: Any, **__: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise MemoryError

    talk.hosted.engine.measure_vanilla = lambda *_, **__: 1.0
    spy(talk.sequence, "forward", fail)
    last = list(talk.comparing("hello", max_new_tokens=40))[-1]
    assert last.verdict is None
    failed = last.arms[order[arm]]
    assert (failed.phase, failed.finish) == ("done", "error")
    assert failed.notice.startswith("Memory ran out")
    assert failed.text
    if order[arm] == "speculative":
        assert talk.messages()[-1].text == failed.text
    if arm:
        assert last.arms[order[0]].finish == "length"


def test_a_message_that_does_not_fit(talk: Talk) -> None:
    with pytest.raises(MessageTooLong, match="Shorten it"):
        list(talk.comparing("river " * 500))
    assert talk.messages() == []
