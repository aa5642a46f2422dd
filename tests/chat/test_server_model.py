"""Chat over a model that a server computes."""

from collections.abc import Iterator

import pytest

from hierchat.chat.completions import NotBegun
from hierchat.engine.engine import TARGET
from hierchat.models.catalogue import OpenAI
from hierchat.store import Store
from tests.engine.remote.drafter import Drafter
from tests.testing.openai_server import Script, serving
from tests.testing.scripted_engine import WORDS, load
from tests.testing.tiny_chat import ready_slot

from .conftest import Talk, slot_over, talk_on, talking

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
    figures = last.figures
    assert (last.prompt_tokens, figures.tokens) == (40, 6)
    unknown = (figures.speedup, figures.baseline, figures.tokens_per_forward, figures.acceptance_rate)
    assert unknown == (None,) * 4
    assert (figures.forward_ms, figures.shares) == (None, {})
    question, reply = talk.messages()
    assert (question.text, reply.text, reply.state) == ("hello", "One two three.", "complete")
    stored = talk.service.figures(talk.user, reply.id)
    assert (stored.tokens, stored.tokens_per_forward, stored.shares) == (6, None, {})
    assert talk.service.runs(talk.user, reply.id) == []
    assert talk.service.thinks == ("off", "low", "medium", "high")
    talk.send("and now?", last.message_id, reasoning="low")
    assert script.asked[-1]["reasoning_effort"] == "low"
    assert script.asked[-1]["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "One two three."},
        {"role": "user", "content": "and now?"},
    ]


def test_of_an_engine_that_is_known_by_its_contract_alone_nothing_is_claimed(store: Store) -> None:
    talk = talk_on(store, ready_slot(load))
    last = talk.send("hello", max_new_tokens=80)
    figures = last.figures
    assert (last.finish, figures.tokens, figures.shares) == ("length", 80, {TARGET: 1.0})
    assert figures.tokens_per_second is not None
    assert figures.speedup is figures.baseline is figures.baseline_tokens_per_second is None
    assert WORDS.startswith(last.text)
    assert talk.service.figures(talk.user, last.message_id).speedup is None
    with pytest.raises(NotBegun, match="tiny drafts by itself or not at all"):
        list(talk.comparing("hello"))
    assert len(talk.messages()) == 2


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
