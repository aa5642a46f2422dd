"""Replies of a model that thinks, through service and store: stored whole, answered without the thought, continued."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.reasoning import join_reasoning, split_reasoning
from hierchat.store import Store
from tests.testing.scripted_engine import ScriptedEngine, served
from tests.testing.thinkers import DEEPSEEK, QWEN3, thinker
from tests.testing.tiny_chat import ready_slot

from .conftest import Talk, talk_on

THOUGHT, ANSWER = "The user asks.", "Thank you."


def talk_with(store: Store, template: str, text: str) -> tuple[Talk, ScriptedEngine]:
    engine = ScriptedEngine(text, thinker(template))
    model = served(engine, "thinker")
    return talk_on(store, ready_slot(lambda name, report: model)), engine


@pytest.fixture(params=[QWEN3, DEEPSEEK], ids=["says that it thinks", "is told to think"])
def both(request: pytest.FixtureRequest, store: Store) -> tuple[Talk, ScriptedEngine]:
    text = join_reasoning(THOUGHT, ANSWER)
    return talk_with(store, request.param, text if request.param == QWEN3 else text.removeprefix("<think>\n"))


def test_a_reply_is_stored_whole_and_answered_without_its_thought(both: tuple[Talk, ScriptedEngine]) -> None:
    talk, engine = both
    last = talk.send("one")
    assert last.text == join_reasoning(THOUGHT, ANSWER)
    reply = talk.messages()[-1]
    assert reply.text == last.text
    turn = talk.store.replies.turn(talk.user, reply.id)
    assert turn.figures.thought_ms < turn.figures.seconds * 1e3
    figures = talk.service.figures(talk.user, reply.id)
    assert figures.thought_seconds == turn.figures.thought_ms / 1e3 == last.figures.thought_seconds
    runs = talk.service.runs(talk.user, reply.id)
    assert "".join(run.text for run in runs) == last.text  # the sources of all of it
    talk.send("two", reply.id)
    assert ANSWER in engine.prompts[-1]
    assert THOUGHT not in engine.prompts[-1]


def test_a_thought_that_was_cut_goes_on(both: tuple[Talk, ScriptedEngine]) -> None:
    talk, engine = both
    cut = talk.send("one", max_new_tokens=4)
    assert split_reasoning(cut.text).thinking
    assert cut.finish == "length"
    whole = talk.resume(talk.messages()[-1].id, 1000)
    assert whole.text == join_reasoning(THOUGHT, ANSWER)
    assert engine.prompts[-1].startswith(engine.prompts[0])
    spent = (cut.figures.thought_seconds, whole.figures.thought_seconds, whole.figures.seconds)
    assert None not in spent
    assert list(spent) == sorted(spent)  # type: ignore[type-var]


def test_whether_it_thinks_is_stored_with_the_reply(store: Store) -> None:
    talk, engine = talk_with(store, QWEN3, ANSWER)
    assert talk.service.thinks == ("off", "on")
    talk.send("one", reasoning="off", max_new_tokens=2)
    assert engine.prompts[-1].endswith("<think>\n\n</think>\n\n")
    talk.resume(talk.messages()[-1].id, 1000)
    assert engine.prompts[-1].startswith(engine.prompts[0])
    assert talk.messages()[-1].text == ANSWER


@pytest.mark.parametrize(
    ("text", "thought", "answer", "thinking"),
    [
        ("<think>\nSo.\n</think>\n\nYes.", "So.", "Yes.", False),
        ("<think>\nSo it", "So it", "", True),
        ("<think>\n\n</think>\n\nYes.", "", "Yes.", False),
        *((text, "", text, False) for text in ("Yes.", "", "Write <think> and </think>.", "a</think>b")),
    ],
)
def test_a_text_in_two(text: str, thought: str, answer: str, thinking: bool) -> None:
    parts = split_reasoning(text)
    assert (parts.thought, parts.answer, parts.thinking) == (thought, answer, thinking)
    assert text[parts.thought_at :].startswith(thought)
    assert thinking or text[parts.answer_at :] == answer
    assert join_reasoning("", answer) == answer


pieces = st.text(st.sampled_from("ab <\n"), min_size=1)


@given(pieces, pieces)
def test_both_grow_at_their_end_alone(thought: str, answer: str) -> None:
    text = join_reasoning(thought, answer)
    before = split_reasoning("<think>")
    for end in range(len("<think>"), len(text) + 1):
        parts = split_reasoning(text[:end])
        if not parts.thinking or not text[:end].endswith(tuple("</think>"[:n] for n in range(1, 8))):
            assert parts.thought.startswith(before.thought)
            assert parts.answer.startswith(before.answer)
            before = parts
    assert (before.thought, before.answer) == (thought.strip(), answer.lstrip())
