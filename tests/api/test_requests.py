"""What is answered, and what is refused with which status and words."""

import re
from pathlib import Path

import pytest

from hierchat.engine.scheduler import QueueFull
from hierchat.models.catalogue import OpenAI
from hierchat.models.progress import Report
from hierchat.runtime.served_model import ServedModel
from tests.api.scripted import Script, Served, make_slot, serving, tiny
from tests.chat.conftest import slot_over
from tests.testing.raw import Answer
from tests.testing.raw import ask_endpoint as ask
from tests.testing.tiny_chat import CONTEXT

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"audio": {}}, "audio", "not supported"),
        ({"reasoning_effort": "endless"}, "reasoning_effort", "none"),
        ({"typo": 1}, "typo", "not supported"),
        ({"store": True}, "store", "False"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"logprobs": True}, "logprobs", "should be False"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "names token 999999"),
        ({"logit_bias": {"word": 1}}, "logit_bias.word", "integer"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema stands"),
        ({"tool_choice": "required"}, None, "not among tools"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "not made to call tools"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0", "robot"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.user.content.0.type",
            "should be 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": "word " * CONTEXT}]},
            "messages",
            f"context holds {CONTEXT}",
        ),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    tiny_served: Served, more: dict[str, object], param: str | None, words: str
) -> None:
    for stream in (False, True):
        answer = ask(tiny_served.address, "POST", CHAT, {**ASKED, "stream": stream, **more})
        assert answer.status == 400, answer.text
        assert answer.headers["Content-Type"] == "application/json"
        assert set(answer.error) == {"message", "type", "param", "code"}
        assert answer.error["type"] == "invalid_request_error"
        assert words in answer.error["message"]
        assert (answer.error["param"] or "").startswith(param or "")


def test_what_asks_for_nothing_special_is_taken(tiny_served: Served) -> None:
    usual = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "n": 1, "logprobs": False,
        "parallel_tool_calls": True, "modalities": ["text"], "response_format": {"type": "text"}, "audio": None,
        "temperature": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "presence_penalty": 0.1, "seed": -1,
        "frequency_penalty": 0.1, "repetition_penalty": 1.1, "max_completion_tokens": 5, "stream_options": {},
        "logit_bias": {"5": 1},
        "messages": [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "you"}]},
            {"role": "assistant", "content": "hi", "refusal": None, "annotations": []},
            {"role": "user", "content": "again"},
        ],
    }  # fmt: skip
    answer = ask(tiny_served.address, "POST", CHAT, usual)
    assert answer.status == 200, answer.text
    assert answer.json["usage"]["completion_tokens"] <= 5


@pytest.mark.parametrize("body", ["", "no json", "[1]", "{", '{"messages": 1e999}', "[" * 100_000])
def test_what_is_no_request_and_what_is_too_large(
    tiny_served: Served, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    assert ask(tiny_served.address, "POST", CHAT, body).status == 400
    monkeypatch.setattr("hierchat.api.requests.MOST_BYTES", 1000)
    long = {"messages": [{"role": "user", "content": "x" * 2000}]}
    assert ask(tiny_served.address, "POST", CHAT, long).status == 413


def test_stop_strings_never_come_out_in_part(endpoint: Served, script: Script) -> None:
    script.text = "one two STOP three"
    for stop in ("STOP", ["nothing", "STOP"]):
        whole = ask(endpoint.address, "POST", CHAT, {**ASKED, "stop": stop}).json
        assert whole["choices"][0]["message"]["content"] == "one two "
        assert whole["choices"][0]["finish_reason"] == "stop"
        stream = ask(endpoint.address, "POST", CHAT, {**ASKED, "stop": stop, "stream": True}).text
        assert "".join(re.findall('"content": "([^"]*)"', stream)) == "one two "


def test_without_a_model_and_with_a_full_queue(tiny_served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise QueueFull("Too many replies are waiting. Please try again in a moment.")

    slot = tiny_served.service.slot
    with monkeypatch.context() as patched:
        patched.setattr(slot.scheduler, "join", full)
        for stream in (False, True):
            answer = ask(tiny_served.address, "POST", CHAT, {**ASKED, "stream": stream})
            assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
            assert answer.headers["Retry-After"]
    monkeypatch.setattr(slot, "model", None)
    monkeypatch.setattr(slot, "status", type(slot.status)())
    answer = ask(tiny_served.address, "POST", CHAT, ASKED)
    assert (answer.status, answer.error["code"]) == (503, "model_not_loaded")
    assert ask(tiny_served.address, "GET", "/health").status == 503


def test_another_model_is_loaded_where_it_is_here(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, report: Report) -> ServedModel:
        if name == "broken":
            raise MemoryError
        return tiny(name, report)

    here = ["one", "two", "broken"]
    fetched = "hierchat.runtime.model_manager.is_fetched"
    monkeypatch.setattr(fetched, lambda entry, device: entry.name in here)
    slot = make_slot(load, *here)
    with serving(tmp_path, slot) as served:

        def asked(**more: object) -> Answer:
            return ask(served.address, "POST", CHAT, {**ASKED, "max_tokens": 3, **more})

        answer = asked(model="two")
        assert answer.json["model"] == "two", answer.text
        assert answer.json["usage"]["hierchat"]["load_seconds"] > 0
        assert slot.model.name == "two"
        named = {one["id"]: one["loaded"] for one in ask(served.address, "GET", "/v1/models").json["data"]}
        assert named == {"one": False, "two": True, "broken": False}
        answer = asked(model="broken")
        assert (answer.status, "ran out of memory" in answer.error["message"]) == (503, True)
        assert slot.model.name == "two"
        here.remove("one")
        answer = asked(model="one")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert asked().json["model"] == "two"


def test_a_gap_is_filled_by_models_that_were_made_for_it(
    tiny_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**more: str) -> Answer:
        body = {"prompt": "def", "max_tokens": 1, **more}
        return ask(tiny_served.address, "POST", "/v1/completions", body)

    answer = asked(suffix="end")
    assert (answer.status, answer.error["param"]) == (400, "suffix")
    marks = ("<|im_start|>", "<|im_end|>", "<|im_start|>")
    monkeypatch.setattr("hierchat.api.openai._MIDDLES", (("<none>",) * 3, marks))
    plain, filled = (answer.json["usage"]["prompt_tokens"] for answer in (asked(), asked(suffix="end")))
    assert filled > plain + 2


def test_the_words_are_those_of_the_other_one_and_what_needs_tokens_is_refused(
    tiny_served: Served, tmp_path: Path
) -> None:
    """A hierchat whose model is another hierchat's endpoint."""
    said = [{"role": "user", "content": "hello"}]
    asked = {"messages": said, "max_tokens": 8, "temperature": 1, "seed": 7}
    with serving(tmp_path, slot_over(OpenAI(url=tiny_served.base))) as served:
        answer = ask(served.address, "POST", "/v1/completions", {"prompt": "Once"})
        assert answer.status == 400
        assert answer.error["message"].startswith("far is computed by another server")
        near, far = (
            ask(one.address, "POST", "/v1/chat/completions", asked).json for one in (tiny_served, served)
        )
    assert far["usage"]["prompt_tokens"] == near["usage"]["prompt_tokens"]
    assert far["usage"]["completion_tokens"] == 8
    assert far["choices"] == near["choices"]  # the words that the other one writes
