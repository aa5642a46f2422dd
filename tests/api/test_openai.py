"""The official client, unmodified, against a real server."""

# mypy: ignore-errors

from __future__ import annotations

import json
from dataclasses import replace

import openai
import pytest

from hierchat.runtime.prompt import PromptBuilder
from tests.api.scripted import TOOLS_TEMPLATE, Script, Served, make_slot, serving, tiny, with_template

ASKED = [{"role": "user", "content": "hello"}]


def client(served: Served, key: str = "none", **options: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.base, api_key=key, max_retries=0, **options)  # type: ignore[arg-type]


def test_a_stream_comes_as_it_is_written(written: tuple[Script, Served], script: Script) -> None:
    script.holds_at = 3
    stream = client(written[1]).chat.completions.create(
        model="tiny", messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    words, usage, finish = "", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            words += choice.delta.content or ""
            finish = choice.finish_reason or finish
        if words and not script.go.is_set():
            assert "Hello there.".startswith(words)
            assert words != "Hello there."
            script.go.set()
    assert (words, finish) == ("Hello there.", "stop")
    assert usage is not None
    assert usage.completion_tokens > 3


def test_text_goes_on(tiny_served: Served) -> None:
    whole = client(tiny_served).completions.create(model="tiny", prompt="The river", max_tokens=8, seed=1)
    stream = client(tiny_served).completions.create(
        model="tiny", prompt="The river", max_tokens=8, seed=1, stream=True, echo=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == "The river" + whole.choices[0].text
    ids = [5, 6, 7]
    several = client(tiny_served).completions.create(model="tiny", prompt=[ids, ids], n=2, max_tokens=4)
    texts = [choice.text for choice in several.choices]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 1  # the model's own temperature is 0
    assert several.usage.prompt_tokens == 6
    assert several.usage.completion_tokens == 16


def test_n_replies_differ_by_their_seeds(tiny_served: Served) -> None:
    def texts(**more: object) -> list[str]:
        answer = client(tiny_served).chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=16, temperature=1.0, **more
        )
        return [choice.message.content for choice in answer.choices]

    three = texts(n=3, seed=5)
    assert len(set(three)) == 3
    assert texts(seed=6) == [three[1]]


def test_logprobs(tiny_served: Served) -> None:
    def ask(**more: object) -> object:
        return client(tiny_served).chat.completions.create(
            model="tiny",
            messages=ASKED,
            max_tokens=10,
            logprobs=True,
            top_logprobs=3,
            logit_bias={"2": -100},
            **more,
        )

    whole = ask()
    content = whole.choices[0].logprobs.content
    assert len(content) == 10
    assert (
        b"".join(bytes(one.bytes) for one in content)
        .decode(errors="replace")
        .startswith(whole.choices[0].message.content[:-1])
    )
    for one in content:
        assert one.top_logprobs[0].logprob == one.logprob < 0  # greedy: the likeliest was chosen
        assert [other.logprob for other in one.top_logprobs] == sorted(
            (other.logprob for other in one.top_logprobs), reverse=True
        )
    parts = [
        one
        for chunk in ask(stream=True)
        for one in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [(one.token, one.logprob) for one in parts] == [(one.token, one.logprob) for one in content]
    legacy = client(tiny_served).completions.create(model="tiny", prompt="The", max_tokens=5, logprobs=2)
    told = legacy.choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == len(told.top_logprobs)


SCHEMA = {
    "type": "object",
    "properties": {
        "river": {"type": "string", "maxLength": 5},
        "long": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["river", "long"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_reply_has_the_form_that_was_asked_for(tiny_served: Served, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": SCHEMA, "strict": True}}
    for seed in range(4):
        answer = client(tiny_served).chat.completions.create(
            model="tiny",
            messages=ASKED,
            response_format=form,
            temperature=temperature,
            seed=seed,
            max_tokens=300,
        )
        said = json.loads(answer.choices[0].message.content)
        assert set(said) == {"river", "long"}
        assert len(said["river"]) <= 5
        assert 0 <= said["long"] <= 9
    with pytest.raises(openai.BadRequestError, match="form that the reply is to have"):
        client(tiny_served).chat.completions.create(
            model="tiny",
            messages=ASKED,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nothing"}},
            },
        )


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": CITY},
}
OTHER = {"type": "function", "function": {"name": "time", "parameters": NOTHING}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_can_be_forced(tmp_path, choice: object) -> None:
    def knows_tools(name: str, report: object) -> object:
        loaded = tiny(name, report)
        before = loaded.prompts
        prompts = PromptBuilder(with_template(TOOLS_TEMPLATE), before.context_length, before.system_prompt)
        return replace(loaded, prompts=prompts)

    finished = 0
    with serving(tmp_path, make_slot(knows_tools)) as served:
        for seed in range(6):
            answer = client(served).chat.completions.create(
                model="tiny",
                messages=ASKED,
                tools=[TOOL, OTHER],
                tool_choice=choice,
                temperature=1.0,
                seed=seed,
            )
            (call,) = answer.choices[0].message.tool_calls
            assert call.function.name in (("weather", "time") if choice == "required" else ("weather",))
            assert not answer.choices[0].message.content
            if answer.choices[0].finish_reason == "tool_calls":  # the context had room for all of it
                finished += 1
                given = json.loads(call.function.arguments)
                assert set(given) == ({"city"} if call.function.name == "weather" else set())
    assert finished
