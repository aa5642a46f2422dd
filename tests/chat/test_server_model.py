"""Chat over a model that a server computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hierchat.chat.service import NotBegun
from hierchat.chat.titles import _written
from hierchat.models.catalogue import OpenAI
from hierchat.runtime.prompt import PromptMessage
from hierchat.store import Store
from tests.engine.remote.drafter import Drafter
from tests.testing.openai_server import Script, serving

from .conftest import Talk, talk_on
from .servers import slot_over, talking

USAGE = {"prompt_tokens": 40, "completion_tokens": 6}


@pytest.fixture
def script() -> Script:
    return Script(pieces=("One ", "two ", "three."), usage=USAGE)


@pytest.fixture
def talk(store: Store, script: Script) -> Iterator[Talk]:
    with talking(store, script, model="scripted") as talk:
        yield talk


def test_a_reply_is_written_and_stored_and_only_what_was_measured_is_shown(
    talk: Talk, script: Script
) -> None:
    last = talk.send("hello")
    assert (last.text, last.finish, last.notice) == ("One two three.", "end", None)
    assert last.prompt_tokens == 40
    figures = last.figures
    assert figures.tokens == 6
    unknown = (figures.speedup, figures.baseline, figures.tokens_per_forward, figures.acceptance_rate)
    assert unknown == (None,) * 4
    assert (figures.forward_ms, figures.shares) == (None, {})
    question, reply = talk.messages()
    assert (question.text, reply.text, reply.state) == ("hello", "One two three.", "complete")
    stored = talk.service.figures(talk.user, reply.id)
    assert (stored.tokens, stored.tokens_per_forward, stored.shares) == (6, None, {})
    assert talk.service.runs(talk.user, reply.id) == []
    assert talk.service.tokens("hello") is None
    talk.send("and now?", last.message_id)
    assert script.asked[-1]["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "One two three."},
        {"role": "user", "content": "and now?"},
    ]


def test_old_turns_are_left_out_where_the_context_is_known(talk: Talk, url: str, script: Script) -> None:
    known = talk_on(talk.store, slot_over(OpenAI(url=url, model="scripted"), context_length=200))
    first = known.send("word " * 60)
    second = known.send("another " * 30, first.message_id)
    assert second.notice == "The oldest turn no longer fits the context window and was left out."
    assert len(script.asked[-1]["messages"]) == 1
    known.service.close()


def test_what_came_before_it_broke_off_is_kept_and_the_next_reply_goes_on(talk: Talk, script: Script) -> None:
    script.breaks = True
    last = talk.send("hello")
    assert (last.text, last.finish) == ("One two three.", "error")
    assert "broke off in mid-reply" in (last.notice or "")
    assert [(one.text, one.state) for one in talk.messages()][1:] == [("One two three.", "interrupted")]
    script.breaks = False
    assert talk.send("again", last.message_id).finish == "end"


def test_a_server_that_is_gone_is_said_and_it_answers_when_it_is_there_again(store: Store) -> None:
    script = Script()
    with serving(script) as url:
        talk = talk_on(store, slot_over(OpenAI(url=url, model="scripted")))
    last = talk.send("hello")
    assert last.finish == "error"
    assert f"Nothing answers at {url}" in (last.notice or "")
    status = slot_over(OpenAI(url=url, model="scripted")).status
    gone = f"Nothing answers at {url}. Start the server there, then try again."
    assert (status.phase, status.message) == ("failed", gone)
    with serving(script, int(url.rsplit(":", 1)[1])):
        assert talk.again(talk.messages()[0].id).text == "Hello there."
        with pytest.raises(
            NotBegun, match=r"The server of far begins replies only\. Ask for the rest in a message"
        ):
            talk.resume(talk.messages()[-1].id)
    talk.service.close()


def test_chats_get_titles(talk: Talk, script: Script) -> None:
    script.pieces = ("Rivers of ", "Europe")
    prompt = talk.model.prompts.build([PromptMessage("user", "?")], 16)
    assert _written(talk.model, prompt, talk.stop, talk.user) == "Rivers of Europe"


def test_what_vllm_refuses_beside_drafts_is_left_out_and_said(store: Store, script: Script) -> None:
    with talking(store, script, Drafter(), model="scripted") as talk:
        last = talk.send("hello", min_p=0.1, logit_bias={5: 1.0})
        assert (
            last.notice == "Min-p and logit bias are left out: vLLM does not take them together with drafts."
        )
        assert talk.send("more", last.message_id, logit_bias={}).notice is None
    assert not {"min_p", "logit_bias"} & script.asked[0].keys()
    with talking(store, script, model="scripted") as talk:  # to any other server they are sent
        assert talk.send("hello", min_p=0.1, logit_bias={5: 1.0}).notice is None
    assert (script.asked[-1]["min_p"], script.asked[-1]["logit_bias"]) == (0.1, {"5": 1.0})


def test_how_much_it_thinks_is_the_chats_setting(talk: Talk, script: Script) -> None:
    assert talk.service.thinks == ("off", "low", "medium", "high")
    assert talk.send("hello", reasoning="low").notice is None
    script.unknown = "reasoning_effort"
    last = talk.send("hello", reasoning="off")
    assert (last.text, last.finish) == ("One two three.", "end")
    assert last.notice
    assert "does not let one choose how much this model thinks" in last.notice
    assert talk.send("hello").notice is None
    assert [asked.get("reasoning_effort") for asked in script.asked] == ["low", "none", None, None]
