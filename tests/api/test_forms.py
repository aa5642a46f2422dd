"""One reply in two forms: chat completions and messages, each whole and as a stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hierchat.reasoning import join_reasoning
from tests.api.scripted import Script, Served, make_slot, scripted, serving
from tests.testing.raw import ask_endpoint as ask
from tests.testing.thinkers import QWEN3
from tests.testing.tiny_chat import tokenizer

Json = dict[str, Any]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALLS = (
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "a \\"}b"}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {"city": "Bern"}, "name": "weather"}\n</tool_call>'
)
THOUGHT, ANSWER = "The user says hello.", "Hello there."


@dataclass
class Got:
    """A reply, whatever its form. `sent`: what a client sends back of it."""

    sent: Any
    why: str
    prompt: int
    written: int
    text: str = ""
    thought: str = ""
    calls: list[tuple[str, str, Json]] = field(default_factory=list)
    """Id, name and arguments."""


@dataclass(frozen=True)
class Asked:
    """A request: `back` is an earlier reply that goes with the results of its first call, `thinks` is left open by
    None."""

    system: str = ""
    tools: bool = False
    most: int = 300
    thinks: bool | None = None
    alone: bool = False
    back: Got | None = None


def events(text: str) -> list[Json]:
    """The data of each event; where events have names, they are those of their types."""
    found = []
    for event in text.strip().split("\n\n"):
        *name, data = event.split("\n")
        if data != "data: [DONE]":
            found.append(json.loads(data.removeprefix("data: ")))
            assert name in ([], [f"event: {found[-1].get('type')}"])
    return found


class Chat:
    path = "/v1/chat/completions"
    ends = ("stop", "tool_calls", "length")

    def body(self, asked: Asked) -> Json:
        messages: list[Json] = [{"role": "system", "content": asked.system}] if asked.system else []
        messages.append({"role": "user", "content": "hello"})
        if asked.back:
            messages.append(asked.back.sent)
            messages += [
                {"role": "tool", "tool_call_id": id, "content": "rain"} for id, *_ in asked.back.calls[:1]
            ] or [{"role": "user", "content": "again"}]
        body: Json = {"messages": messages, "max_tokens": asked.most}
        if asked.tools:
            body["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
        if asked.alone:
            body["parallel_tool_calls"] = False
        return (
            body if asked.thinks is None else body | {"reasoning_effort": "high" if asked.thinks else "none"}
        )

    def whole(self, answer: Json) -> Got:
        (choice,), usage = answer["choices"], answer["usage"]
        message = choice["message"]
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ]
        text, thought = message["content"] or "", message.get("reasoning_content", "")
        figures = (choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"])
        return Got(message, *figures, text, thought, calls)

    def streamed(self, told: list[Json]) -> Got:
        message: Json = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        why = ""
        for choice in (choice for one in told for choice in one["choices"]):
            delta, why = choice["delta"], choice["finish_reason"] or why
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    message["tool_calls"].append({name: call[name] for name in ("id", "type", "function")})
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"][
                        "arguments"
                    ]
        return self.whole(
            {"choices": [{"message": message, "finish_reason": why}], "usage": told[-1]["usage"]}
        )


class Messages:
    path = "/v1/messages"
    ends = ("end_turn", "tool_use", "max_tokens")

    def body(self, asked: Asked) -> Json:
        messages: list[Json] = [{"role": "user", "content": "hello"}]
        if asked.back:
            results = [
                {"type": "tool_result", "tool_use_id": id, "content": "rain"}
                for id, *_ in asked.back.calls[:1]
            ]
            messages += [
                {"role": "assistant", "content": asked.back.sent},
                {"role": "user", "content": results or "again"},
            ]
        body: Json = {"messages": messages, "system": asked.system, "max_tokens": asked.most}
        if asked.tools:
            body["tools"] = [{"name": "weather", "input_schema": CITY}]
        if asked.alone:
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
        return (
            body
            if asked.thinks is None
            else body | {"thinking": {"type": "enabled" if asked.thinks else "disabled"}}
        )

    def whole(self, answer: Json) -> Got:
        usage = answer["usage"]
        got = Got(answer["content"], answer["stop_reason"], usage["input_tokens"], usage["output_tokens"])
        for block in answer["content"]:
            if block["type"] == "tool_use":
                got.calls.append((block["id"], block["name"], block["input"]))
            else:
                got.text += block.get("text", "")
                got.thought += block.get("thinking", "")
        return got

    def streamed(self, told: list[Json]) -> Got:
        blocks: list[Json] = []
        for one in told:
            if one["type"] == "content_block_start":
                blocks.append(one["content_block"] | {"json": ""})
            elif one["type"] == "content_block_delta":
                for name, more in one["delta"].items():
                    if name != "type":
                        name = name.removeprefix("partial_")
                        blocks[one["index"]][name] += more
        for block in blocks:
            given = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(given)
        assert told[0]["type"] == "message_start"
        last, end = told[-2:]
        assert (end["type"], last["delta"].keys()) == ("message_stop", {"stop_reason", "stop_sequence"})
        return self.whole(
            {"content": blocks, "stop_reason": last["delta"]["stop_reason"], "usage": last["usage"]}
        )


Form = Chat | Messages


@dataclass
class Way:
    """A form, whole or as a stream."""

    form: Form
    stream: bool

    def ask(self, served: Served, **asked: Any) -> Got:
        body = self.form.body(Asked(**asked))
        if not self.stream:
            answer = ask(served.address, "POST", self.form.path, body)
            assert answer.status == 200, answer.text
            return self.form.whole(answer.json)
        more: Json = {"stream_options": {"include_usage": True}} if isinstance(self.form, Chat) else {}
        answer = ask(served.address, "POST", self.form.path, body | {"stream": True} | more)
        assert answer.status == 200, answer.text
        return self.form.streamed(events(answer.text))


@pytest.fixture(params=[(form, stream) for form in (Chat, Messages) for stream in (False, True)])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param[0](), request.param[1])


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Script, Served]]:
    """A model that thinks, and lets one choose."""
    script = Script(join_reasoning(THOUGHT, ANSWER))
    with serving(tmp_path_factory.mktemp("thinking"), make_slot(scripted(script, QWEN3))) as served:
        yield script, served


def prompt_of(script: Script) -> str:
    return tokenizer().decode(script.asked[-1][0])


def test_a_reply(way: Way, endpoint: Served, script: Script) -> None:
    got = way.ask(endpoint, system="Be kind.")
    assert (got.text, got.why) == ("Hello there.", way.form.ends[0])
    assert min(got.prompt, got.written) > 0
    assert "Be kind." in prompt_of(script)
    assert way.ask(endpoint, most=2).why == way.form.ends[2]


def test_tools_are_called(way: Way, endpoint: Served, script: Script) -> None:
    script.text = CALLS
    got = way.ask(endpoint, tools=True)
    assert (got.text.strip(), got.why) == ("Let me look.", way.form.ends[1])
    assert [call[1:] for call in got.calls] == [("weather", {"city": 'a "}b'}), ("weather", {"city": "Bern"})]
    assert got.calls[0][0] != got.calls[1][0]
    assert len(way.ask(endpoint, tools=True, alone=True).calls) == 1
    script.text = "It rains."  # the call and its result go back to the model
    assert way.ask(endpoint, tools=True, back=got).text == "It rains."
    told = prompt_of(script)
    assert told.index('<tool_call>\n{"name": "weather"') < told.rindex("rain")
    assert not way.ask(endpoint).calls


def test_thoughts_stand_apart(way: Way, thinking: tuple[Script, Served]) -> None:
    script, served = thinking
    got = way.ask(served, thinks=True)
    assert (got.thought.strip(), got.text) == (THOUGHT, ANSWER)
    assert way.ask(served, back=got).text == ANSWER
    assert ANSWER in prompt_of(script)
    assert THOUGHT not in prompt_of(script)  # of an earlier reply
    way.ask(served, thinks=False)
    assert prompt_of(script).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("asked", "off"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False),
    ],
)
def test_whether_it_thinks(thinking: tuple[Script, Served], asked: Json, off: bool) -> None:
    script, served = thinking
    assert ask(served.address, "POST", Chat.path, Chat().body(Asked()) | asked).status == 200
    assert prompt_of(script).endswith("<think>\n\n</think>\n\n") == off


def test_a_stop_string_is_named(endpoint: Served, script: Script) -> None:
    body = Messages().body(Asked()) | {"stop_sequences": [" there"]}
    stopped = ask(endpoint.address, "POST", Messages.path, body).json
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " there")


@pytest.mark.parametrize(
    ("form", "more", "param"),
    [
        (Messages, {"thinking": {"type": "so so"}}, "thinking"),
        (Messages, {"max_tokens": 0}, "max_tokens"),
        (Messages, {"messages": []}, "messages"),
        (Messages, {"temperature": -1}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_named(tiny_served: Served, form: type[Form], more: Json, param: str) -> None:
    answer = ask(tiny_served.address, "POST", form.path, form().body(Asked()) | more)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert param in answer.error["message"]
