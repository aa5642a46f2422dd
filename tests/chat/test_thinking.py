"""Replies of a model that thinks, through service and store: stored whole, answered without the thought, continued."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from hierchat.chat.service import ChatService
from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.reasoning import join_reasoning, split_reasoning
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import Store
from tests.testing.thinkers import DEEPSEEK, QWEN3, thinker
from tests.testing.tiny_chat import CONTEXT, ready_slot

from .conftest import Talk

THOUGHT, ANSWER = "The user asks.", "Thank you."


class Thinker:
    """An engine that writes `text`, a token a step."""

    context_length = CONTEXT
    places = 1
    exact: bool | None = None
    backend = "thinker"

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        self.prompts: list[str] = []
        self._decode = tokenizer.decode

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        self.prompts.append(self._decode(request.prompt_ids))
        yield Step(prompt_read=1, prompt_tokens=len(request.prompt_ids))
        most = min(request.settings.max_new_tokens, len(self._tokens))
        for at in range(request.begun, most):
            finish: Any = None
            if at + 1 == most:
                finish = "end" if most == len(self._tokens) else "length"
            yield Step((self._tokens[at],), (TARGET,), width=1, forward_ms=10.0, finish=finish)


def talk_with(store: Store, template: str, text: str) -> tuple[Talk, Thinker]:
    made = thinker(template)
    engine = Thinker(made, text)
    served = ServedModel("thinker", "key", engine, PromptBuilder(made, CONTEXT), vanilla_ms=None)
    user = store.users.ensure("ann")
    service = ChatService(store, ready_slot(lambda name, report: served))
    return Talk(service, user, store.chats.create(user)), engine


@pytest.fixture(params=[QWEN3, DEEPSEEK], ids=["says that it thinks", "is told to think"])
def both(request: pytest.FixtureRequest, store: Store) -> tuple[Talk, Thinker]:
    text = join_reasoning(THOUGHT, ANSWER)
    return talk_with(store, request.param, text if request.param == QWEN3 else text.removeprefix("<think>\n"))


def test_a_reply_is_stored_whole_and_answered_without_its_thought(both: tuple[Talk, Thinker]) -> None:
    talk, engine = both
    last = talk.send("one")
    assert last.text == join_reasoning(THOUGHT, ANSWER)
    reply = talk.messages()[-1]
    assert reply.text == last.text
    turn = talk.store.replies.turn(talk.user, reply.id)
    assert turn
    assert turn.figures
    assert turn.figures.thought_ms
    assert turn.figures.thought_ms < turn.figures.seconds * 1e3
    figures = talk.service.figures(talk.user, reply.id)
    assert figures
    assert figures.thought_seconds == turn.figures.thought_ms / 1e3 == last.figures.thought_seconds
    talk.send("two", reply.id)
    assert ANSWER in engine.prompts[-1]
    assert THOUGHT not in engine.prompts[-1]


def test_its_sources_are_those_of_the_whole_text(both: tuple[Talk, Thinker]) -> None:
    talk, _ = both
    talk.send("one")
    runs = talk.service.runs(talk.user, talk.messages()[-1].id)
    assert "".join(run.text for run in runs) == join_reasoning(THOUGHT, ANSWER)


def test_a_thought_that_was_cut_goes_on(both: tuple[Talk, Thinker]) -> None:
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
