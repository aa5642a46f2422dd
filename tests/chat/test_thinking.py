"""Replies of a model that thinks, through service and store: stored whole, answered without the thought, continued."""

from __future__ import annotations

import pytest

from hierchat.chat.service import ChatService
from hierchat.reasoning import join_reasoning, split_reasoning
from hierchat.store import Store
from tests.testing.scripted_engine import ScriptedEngine, served
from tests.testing.thinkers import DEEPSEEK, QWEN3, thinker
from tests.testing.tiny_chat import ready_slot

from .conftest import Talk

THOUGHT, ANSWER = "The user asks.", "Thank you."


def talk_with(store: Store, template: str, text: str) -> tuple[Talk, ScriptedEngine]:
    engine = ScriptedEngine(text, thinker(template))
    model = served(engine, "thinker")
    user = store.users.ensure("ann")
    service = ChatService(store, ready_slot(lambda name, report: model))
    return Talk(service, user, store.chats.create(user)), engine


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
    talk.send("two", reply.id)
    assert ANSWER in engine.prompts[-1]
    assert THOUGHT not in engine.prompts[-1]


def test_its_sources_are_those_of_the_whole_text(both: tuple[Talk, ScriptedEngine]) -> None:
    talk, _ = both
    talk.send("one")
    runs = talk.service.runs(talk.user, talk.messages()[-1].id)
    assert "".join(run.text for run in runs) == join_reasoning(THOUGHT, ANSWER)


def test_a_thought_that_was_cut_goes_on(both: tuple[Talk, ScriptedEngine]) -> None:
    talk, engine = both
    cut = talk.send("one", max_new_tokens=4)
    assert split_reasoning(cut.text).thinking
    assert cut.finish == "length"
    whole = list(talk.service.resume(talk.user, talk.messages()[-1].id, 1000, talk.stop))[-1]
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
    list(talk.service.resume(talk.user, talk.messages()[-1].id, 1000, talk.stop))
    assert engine.prompts[-1].startswith(engine.prompts[0])
    assert talk.messages()[-1].text == ANSWER
