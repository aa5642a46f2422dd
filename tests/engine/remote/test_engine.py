"""A model of a server that speaks OpenAI's protocol: replies as the contract has them, and how much it thinks.
tests/chat/test_server_model.py has one that is gone."""

import threading
from typing import Any

import pytest

from hierchat.config import GenerationSettings, Reasoning
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.remote import openai_client
from hierchat.engine.remote.openai_client import OpenAIClient, ServerError
from hierchat.engine.remote.openai_engine import MOST_CHARACTERS, RemoteEngine, TextTokens, asked, choices
from hierchat.models.catalogue import OpenAI
from tests.testing.openai_server import Script

SAID = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Grüße, 你好 🙂?"}]


@pytest.fixture
def script() -> Script:
    return Script(usage={"prompt_tokens": 7, "completion_tokens": 2})


def prompt() -> list[int]:
    return list(TextTokens().apply_chat_template(SAID)["input_ids"])


def engine(url: str, context: int = 0, **said: Any) -> RemoteEngine:
    server = OpenAIClient(OpenAI(url=url, **said))
    return RemoteEngine(server, server.model("scripted"), context)


def steps(
    engine: RemoteEngine, pressed: threading.Event | None = None, **settings: Any
) -> tuple[list[Step], str]:
    stop = pressed or threading.Event()
    made = list(engine.generate(GenerationRequest(prompt(), GenerationSettings(**settings), stop=stop)))
    return made, "".join(step.text or "" for step in made)


def test_tokens_are_those_that_the_server_counts_else_pieces(url: str, script: Script) -> None:
    script.usage, script.finish = None, "length"
    made, _ = steps(engine(url))
    assert [len(step.tokens) for step in made if step.tokens] == [1, 1]
    assert made[-1].finish == "length"
    script.counts, script.usage = True, {"prompt_tokens": 7, "completion_tokens": 8}
    made, _ = steps(engine(url))
    assert [len(step.tokens) for step in made if step.tokens] == [3, 3, 2]


def test_text_comes_as_it_is_told_and_nothing_is_claimed_of_forwards(url: str, script: Script) -> None:
    made, text = steps(engine(url), temperature=0.5, seed=3, top_k=5, stop=("\n",), max_new_tokens=9)
    assert text == "Hello there."
    assert made[-1].finish == "end"
    assert sum(len(step.tokens) for step in made) == 2
    assert made[-1].prompt_tokens == 7
    assert {step.width for step in made} == {0}
    (asked,) = script.asked
    assert asked == {
        "model": "scripted",
        "messages": SAID,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "seed": 3,
        "top_k": 5,
        "stop": ["\n"],
        "max_tokens": 9,
    }
    steps(engine(url, len(prompt()) + 5), max_new_tokens=100)
    assert script.asked[1]["max_tokens"] == 5  # no more than the context holds


@pytest.mark.parametrize(("owner", "name"), [("vllm", "repetition_penalty"), ("llamacpp", "repeat_penalty")])
def test_a_field_has_the_name_that_the_server_knows(url: str, script: Script, owner: str, name: str) -> None:
    script.models[1]["owned_by"] = owner
    made, _ = steps(engine(url), repetition_penalty=1.5, reasoning="off")
    assert not [step.notice for step in made if step.notice]
    (asked,) = script.asked
    assert asked[name] == 1.5
    assert asked["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert "reasoning_effort" not in asked
    assert ("continuous_usage_stats" in asked["stream_options"]) == (owner == "vllm")


def test_reasoning_that_comes_apart_stands_in_front(url: str, script: Script) -> None:
    script.pieces_apart = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Well"},
        {"reasoning_content": "."},
    ]
    assert steps(engine(url))[1] == "<think>\nWell.\n</think>\n\nHello there."


def test_it_is_stopped_and_the_server_notices(url: str, script: Script) -> None:
    """Also one that is silent."""
    script.silent = True
    stop = threading.Event()
    threading.Thread(target=lambda: script.arrived.wait(30) and stop.set()).start()
    made, text = steps(engine(url), stop)
    assert (made[-1].finish, text) == ("stopped", "")
    script.silent, script.endless = False, True
    stop, made = threading.Event(), []
    for step in engine(url).generate(GenerationRequest(prompt(), GenerationSettings(), stop=stop)):
        made.append(step)
        if len(made) == 4:
            stop.set()
    assert made[-1].finish == "stopped"
    assert script.hung_up.wait(30)


def test_it_breaks_off_in_mid_reply(url: str, script: Script) -> None:
    script.breaks = True
    came: list[Step] = []
    with pytest.raises(ServerError, match=r"broke off in mid-reply\. What had come is kept\."):
        came.extend(engine(url).generate(GenerationRequest(prompt(), GenerationSettings())))
    assert "".join(step.text or "" for step in came) == "Hello there."


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            (404, "The model `scripted` does not exist."),
            r"could not do it\. The model `scripted` does not exist",
        ),
        ((401, "no"), "asks for a key"),
        ((503, "Loading model"), "could not do it. Loading model"),
        ('data: {"choices": [{"delta": {"content": "Half"}}]}\n\n', "broke off in mid-reply"),
        ('data: {"error": {"message": "The engine died."}}\n\n', r"could not do it\. The engine died\."),
        ("data: nonsense\n\n", "does not speak OpenAI's protocol"),
        ("data: [1]\n\n", "does not speak OpenAI's protocol"),
        ("<html>Hello</html>", "does not speak OpenAI's protocol"),
        ("\n", "does not speak OpenAI's protocol"),
    ],
)
def test_what_is_refused_or_no_whole_reply_is_said(
    url: str, script: Script, answer: tuple[int, str] | str, says: str
) -> None:
    made = engine(url)
    if isinstance(answer, str):
        script.raw = answer
    else:
        script.refuses = answer
    with pytest.raises(ServerError, match=says):
        steps(made)


def test_counts_that_cannot_be_are_none(url: str, script: Script) -> None:
    for told in (10**15, -5, 2.5, "many", None, [1], True):
        script.usage = {"prompt_tokens": told, "completion_tokens": told}
        made, text = steps(engine(url), max_new_tokens=9)
        assert text == "Hello there."
        assert sum(len(step.tokens) for step in made) == 2
        assert made[-1].prompt_tokens == 0
    script.usage = {"completion_tokens": 1_000_000}  # more than was asked for
    assert sum(len(step.tokens) for step in steps(engine(url), max_new_tokens=9)[0]) == 9


def test_a_server_that_writes_on_and_on_is_left(url: str, script: Script) -> None:
    script.endless, script.pieces = True, ("on and on " * 20,)
    made, text = steps(engine(url), max_new_tokens=3)
    assert made[-1].finish == "length"
    assert 3 * MOST_CHARACTERS < len(text) <= 3 * MOST_CHARACTERS + 200
    assert script.hung_up.wait(30)


def test_answers_and_lines_without_end_fill_no_memory(
    url: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(url)
    monkeypatch.setattr(openai_client, "MOST_BYTES", 200_000)
    script.pieces = ("word " * 10_000,) * 5  # of lines that are not too long
    assert steps(made, max_new_tokens=100_000)[1] == "word " * 50_000
    script.pieces = ("word " * 200_000,)
    with pytest.raises(ServerError, match="does not speak OpenAI's protocol"):
        steps(made)
    script.models *= 5_000
    with pytest.raises(ServerError, match="does not speak OpenAI's protocol"):
        engine(url)


def test_headers_without_end(url: str, script: Script) -> None:
    made, script.more_headers = engine(url), 4_000
    with pytest.raises(ServerError, match="Nothing answers at"):
        steps(made)


def test_models_of_a_server(url: str, script: Script) -> None:
    server = OpenAIClient(OpenAI(url=url))
    assert (server.model(None).name, server.model(None).context) == ("other", 0)
    with pytest.raises(ServerError, match=r"has no model 'mine'\. It has: other, scripted\."):
        server.model("mine")
    script.models[0]["max_model_len"] = 4096
    assert server.model(None).context == 4096
    script.models = []
    with pytest.raises(ServerError, match="offers no model"):
        server.model(None)


def test_keys(url: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.key = "right-one"
    with pytest.raises(ServerError, match=r"asks for a key\. Put it as `key`"):
        engine(url)
    with pytest.raises(ServerError, match="does not take the key") as caught:
        engine(url, key="wrong-one")
    assert "wrong-one" not in str(caught.value)
    assert steps(engine(url, key="right-one"))[1] == "Hello there."
    with pytest.raises(ServerError, match=r"asks for a key\. Put it in MY_KEY"):
        engine(url, key_variable="MY_KEY")
    monkeypatch.setenv("MY_KEY", "right-one")
    assert steps(engine(url, key_variable="MY_KEY"))[1] == "Hello there."


def test_a_redirect_is_not_followed_and_no_header_tells_of_this_machine(
    url: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "of another account")
    script.leads_to = url
    with pytest.raises(ServerError, match="does not speak OpenAI's protocol"):
        OpenAIClient(OpenAI(url=url)).model(None)
    (seen,) = script.headers
    assert not [name for name in seen if name.startswith(("x-stainless", "openai-"))]
    assert "authorization" not in seen


def template(**variables: object) -> dict[str, Any]:
    return {"chat_template_kwargs": variables}


EFFORTS = ("low", "medium", "high")


@pytest.mark.parametrize(
    ("owner", "model", "offered", "chosen", "fields"),
    [
        ("vllm", "Qwen/Qwen3-8B", ("off", "on"), "off", template(enable_thinking=False, thinking=False)),
        ("vllm", "Qwen/Qwen3-8B", ("off", "on"), "low", template(enable_thinking=False, thinking=False)),
        ("llamacpp", "qwen3", ("off", "on"), "high", template(enable_thinking=True, thinking=True)),
        ("llamacpp", "gpt-oss-20b", EFFORTS, "on", template(reasoning_effort="medium")),
        ("vllm", "openai/gpt-oss-120b", EFFORTS, "off", {"reasoning_effort": "low"}),
        ("organization_owner", "any", EFFORTS, "high", {"reasoning_effort": "high"}),
        ("", "any", EFFORTS, "off", {"reasoning_effort": "low"}),
        ("hierchat", "any", ("off", *EFFORTS), "off", {"reasoning_effort": "none"}),
    ],
)
def test_each_kind_of_server_is_asked_in_its_way(
    owner: str, model: str, offered: tuple[Reasoning, ...], chosen: Reasoning, fields: dict[str, Any]
) -> None:
    assert choices(owner, model) == offered
    assert asked(owner, model, chosen) == fields
    assert asked(owner, model, "") == {}  # it thinks as it does by itself


def test_a_server_that_refuses_is_asked_once_more_without_and_it_is_said(url: str, script: Script) -> None:
    script.unknown = "reasoning_effort"
    made, text = steps(engine(url), reasoning="high", seed=3)
    assert text == "Hello there."
    assert [step.notice for step in made if step.notice] == [
        f"The server at {url} does not let one choose how much this model thinks, so that was left out."
    ]
    first, second = script.asked
    assert first == second | {"reasoning_effort": "high"}


def test_what_is_refused_for_another_reason_is_said_as_it_is(url: str, script: Script) -> None:
    made = engine(url)
    for refuses, says, times in (((400, "Too long"), "Too long", 2), ((503, "Busy"), "Busy", 3)):
        script.refuses = refuses
        with pytest.raises(ServerError, match=says):
            steps(made, reasoning="high")
        assert len(script.asked) == times
