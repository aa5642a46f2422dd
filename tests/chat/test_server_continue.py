"""A server's reply that was cut goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.service import NotBegun
from hierchat.store import Store
from tests.engine.remote.drafter import Drafter
from tests.testing.openai_server import Script

from .conftest import Talk
from .servers import talking

QUESTION = {"role": "user", "content": "hello"}
HALF = {"role": "assistant", "content": "Hello there."}


@pytest.fixture
def script() -> Script:
    models = [{"id": "big", "owned_by": "vllm"}]
    usage = {"prompt_tokens": 7, "completion_tokens": 6}
    return Script(models=models, counts=True, usage=usage, finish="length")


@pytest.fixture
def talk(store: Store, script: Script) -> Iterator[Talk]:
    with talking(store, script) as talk:
        yield talk


def cut(talk: Talk) -> int:
    last = talk.send("hello", max_new_tokens=6)
    assert (last.finish, last.text) == ("length", "Hello there.")
    return last.message_id or 0


def resumed(talk: Talk, id: int) -> Frame:
    return list(talk.service.resume(talk.user, id, 20, talk.stop))[-1]


def test_vllm_is_sent_the_reply_so_far(talk: Talk, script: Script) -> None:
    id = cut(talk)
    script.finish, script.pieces = "stop", (" And ", "so on.")
    last = resumed(talk, id)
    asked = script.asked[-1]
    assert asked["messages"] == [QUESTION, HALF]
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert asked["max_tokens"] == 20
    assert (last.text, last.finish, last.figures.tokens) == ("Hello there. And so on.", "end", 12)
    assert last.message_id == id
    reply = talk.messages()[-1]
    assert (reply.text, reply.state) == (last.text, "complete")
    assert len(talk.store.replies.tokens(talk.user, id)) == 12


def test_of_a_reply_that_came_to_its_end_nothing_is_asked(talk: Talk, script: Script) -> None:
    script.finish = "stop"
    id = talk.send("hello").message_id or 0
    with pytest.raises(NotBegun, match="has come to its end"):
        resumed(talk, id)
    assert len(script.asked) == 1


def test_llamacpp_goes_on_by_itself(store: Store, script: Script) -> None:
    script.models[0]["owned_by"] = "llamacpp"
    with talking(store, script) as talk:
        resumed(talk, cut(talk))
    assert script.asked[-1]["messages"] == [QUESTION, HALF]
    assert "continue_final_message" not in script.asked[-1]


def test_a_server_that_refuses_is_said_and_the_reply_stays(talk: Talk, script: Script) -> None:
    id = cut(talk)
    script.refuses = (400, "Assistant response prefill is incompatible with enable_thinking.")
    last = resumed(talk, id)
    assert last.finish == "error"
    assert (last.notice or "").startswith("It does not go on with this reply: ask for the rest in a message.")
    assert "incompatible with enable_thinking" in (last.notice or "")
    reply = talk.messages()[-1]
    assert (reply.text, reply.state) == ("Hello there.", "interrupted")
    script.refuses = None
    assert resumed(talk, id).text == "Hello there.Hello there."


def test_a_server_that_is_full_is_not_said_to_refuse_it(talk: Talk, script: Script) -> None:
    id = cut(talk)
    script.refuses = (503, "Overloaded")
    assert "does not go on with this reply" not in (resumed(talk, id).notice or "")


def test_the_drafter_keeps_both_parts_and_forgets_both(store: Store, script: Script) -> None:
    drafter = Drafter()
    with talking(store, script, drafter) as talk:
        id = cut(talk)
        last = resumed(talk, id)
        names = [asked["vllm_xargs"]["hierchat_reply"] for asked in script.asked]
        assert names == [f"m{id}", f"m{id}-6"]
        assert last.figures.shares == pytest.approx({"target": 0.5, "history": 1 / 3, "context": 1 / 6})
        talk.store.chats.hide(talk.user, talk.conversation)
    assert sorted(name for _, replies in drafter.forgot for name in replies) == names
