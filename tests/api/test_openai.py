"""The official client, unmodified, against a real server."""

# mypy: ignore-errors

import json
from dataclasses import replace

import numpy as np
import openai
import pytest

from hierchat.api.openai import ChatRequest
from hierchat.runtime.prompt import PromptBuilder
from tests.api.scripted import TOOLS_TEMPLATE, Script, Served, make_slot, serving, tiny, with_template

ASKED = [{"role": "user", "content": "hello"}]


def client(served: Served, key: str = "none", **options: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.base, api_key=key, max_retries=0, **options)  # type: ignore[arg-type]


def complete(served: Served, **asked: object) -> object:
    return client(served).chat.completions.create(model="tiny", messages=ASKED, **asked)


def test_a_stream_comes_as_it_is_written(endpoint: Served, script: Script) -> None:
    script.holds_at = 3
    words, usage, finish = "", None, None
    for chunk in complete(endpoint, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            words += choice.delta.content or ""
            finish = choice.finish_reason or finish
        if words and not script.go.is_set():
            assert "Hello there.".startswith(words)
            assert words != "Hello there."
            script.go.set()
    assert (words, finish) == ("Hello there.", "stop")
    assert usage.completion_tokens > 3


def test_text_goes_on(tiny_served: Served) -> None:
    completions = client(tiny_served).completions
    asked = {"model": "tiny", "prompt": "The river", "max_tokens": 8, "seed": 1}
    whole, stream = completions.create(**asked), completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    tokens = completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4)
    assert (tokens.usage.prompt_tokens, tokens.usage.completion_tokens) == (3, 4)


def closed(**properties: object) -> dict[str, object]:
    """A schema of an object that has these properties, all of them and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


RIVER = closed(river={"type": "string", "maxLength": 5}, long={"type": "integer", "minimum": 0, "maximum": 9})


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_reply_has_the_form_that_was_asked_for(tiny_served: Served, temperature: float) -> None:
    def ask(schema: dict[str, object], seed: int = 0) -> str:
        form = {"type": "json_schema", "json_schema": {"name": "river", "schema": schema, "strict": True}}
        asked = {"response_format": form, "temperature": temperature, "seed": seed, "max_tokens": 300}
        return complete(tiny_served, **asked).choices[0].message.content

    for seed in range(2):
        said = json.loads(ask(RIVER, seed))
        assert set(said) == {"river", "long"}
        assert len(said["river"]) <= 5
        assert 0 <= said["long"] <= 9
    with pytest.raises(openai.BadRequestError, match="form that the reply is to have"):
        ask({"type": "nothing"})


CITY = closed(city={"type": "string", "maxLength": 12})


NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "parameters": NOTHING, "strict": True}},
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_can_be_forced(tmp_path, choice: object) -> None:
    def knows_tools(name: str, report: object) -> object:
        loaded = tiny(name, report)
        before, words = loaded.prompts, with_template(TOOLS_TEMPLATE)
        return replace(loaded, prompts=PromptBuilder(words, before.context_length, before.system_prompt))

    finished = 0
    with serving(tmp_path, make_slot(knows_tools)) as served:
        for seed in range(6):
            answer = complete(served, tools=TOOLS, tool_choice=choice, temperature=1.0, seed=seed)
            message, reason = answer.choices[0].message, answer.choices[0].finish_reason
            if not message.tool_calls:  # the context had no room for all of it
                assert (reason, message.content[:11]) == ("length", "<tool_call>")
                continue
            finished += reason == "tool_calls"
            (call,) = message.tool_calls
            assert message.content is None
            assert call.function.name in (("weather", "time") if choice == "required" else ("weather",))
            given = json.loads(call.function.arguments)
            assert set(given) == ({"city"} if call.function.name == "weather" else set())
    assert finished


@pytest.mark.parametrize(
    ("text", "strict", "fits"),
    [
        ("It rains.", True, True),
        ('{"name": "weather", "arguments": {"city": "Bern"}}', True, True),
        ('{"name": "weather", "arguments": {"town": "Bern"}}', True, False),
        ('{"name": "weather", "arguments": {"town": "Bern"}}', False, True),
    ],
)
def test_a_call_of_a_strict_tool_fits_its_schema(text: str, strict: bool, fits: bool) -> None:
    model = tiny("tiny", None)
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": strict}}
    request = ChatRequest.model_validate({"messages": ASKED, "tools": [tool]})
    assert "strict" not in request.callable_tools[0]["function"]
    written = request.grammar(model)
    assert bool(written) is strict
    grammar = model.local.grammars.begin(written or "start: /(.|\\n)*/")
    for token in model.prompts.tokenizer(text, add_special_tokens=False)["input_ids"]:
        if not np.isfinite(grammar.masked(np.zeros(model.local.runner.vocabulary, np.float32))[token]):
            assert not fits
            return
        grammar.take(token)
    assert fits
