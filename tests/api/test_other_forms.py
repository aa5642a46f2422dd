"""/v1/responses and /v1/messages: the same replies in other words."""

# mypy: ignore-errors
from __future__ import annotations

import json

import openai
import pytest

from tests.api.raw import ask
from tests.api.scripted import Script, Served
from tests.api.test_openai import CALLS, CITY, client
from tests.testing.tiny_chat import tokenizer

FLAT = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
MESSAGE = {"max_tokens": 300, "messages": [{"role": "user", "content": "hello"}]}


def events(text: str) -> list[dict]:
    """Each event's data; its name is that of its type."""
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_response(written: tuple[Script, Served], script: Script) -> None:
    asking = client(written[1])
    whole = asking.responses.create(model="tiny", input="hello", instructions="Be kind.")
    assert (whole.output_text, whole.status) == ("Hello there.", "completed")
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens > 0
    assert "Be kind." in tokenizer().decode(script.asked[-1][0])
    with asking.responses.stream(model="tiny", input="hello") as stream:
        words = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert words == stream.get_final_response().output_text == "Hello there."
    cut = asking.responses.create(
        model="tiny", input=[{"role": "user", "content": "hello"}], max_output_tokens=2
    )
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_response_that_calls(written: tuple[Script, Served], script: Script) -> None:
    script.text = CALLS
    asking = client(written[1])
    whole = asking.responses.create(model="tiny", input="hello", tools=[FLAT])
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    assert json.loads(whole.output[2].arguments) == {"city": "Bern"}
    with asking.responses.stream(model="tiny", input="hello", tools=[FLAT]) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_response()
    assert [item.type for item in last.output] == ["message", "function_call", "function_call"]
    assert [item.arguments for item in last.output[1:]] == [item.arguments for item in whole.output[1:]]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    script.text = "It rains."
    result = {"type": "function_call_output", "call_id": whole.output[1].call_id, "output": "rain"}
    again = asking.responses.create(
        model="tiny",
        input=[
            {"role": "user", "content": "hello"},
            *(item.model_dump(exclude_none=True) for item in whole.output[:2]),
            result,
        ],
        tools=[FLAT],
    )
    assert again.output_text == "It rains."
    told = tokenizer().decode(script.asked[-1][0])
    assert told.index('<tool_call>\n{"name": "weather"') < told.index("rain")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"truncation": "auto"}, "truncation"),
        ({"temperature": -3}, "temperature"),
    ],
)
def test_what_a_response_cannot_do_is_named(tiny_served: Served, more: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client(tiny_served).responses.create(model="tiny", input="hello", **more)
    assert refused.value.body["param"].startswith(param)


def test_a_message(written: tuple[Script, Served], script: Script) -> None:
    address = written[1].address
    whole = ask(address, "POST", "/v1/messages", {**MESSAGE, "system": "Be kind."}).json
    assert whole["content"] == [{"type": "text", "text": "Hello there."}]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "end_turn")
    assert whole["usage"]["output_tokens"] > 0
    assert "Be kind." in tokenizer().decode(script.asked[-1][0])
    stream = events(ask(address, "POST", "/v1/messages", {**MESSAGE, "stream": True}).text)
    assert [one["type"] for one in stream if one["type"] != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert (
        "".join(one["delta"]["text"] for one in stream if one["type"] == "content_block_delta")
        == "Hello there."
    )
    stopped = ask(address, "POST", "/v1/messages", {**MESSAGE, "stop_sequences": [" there"]}).json
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " there")
    assert (
        ask(address, "POST", "/v1/messages", {**MESSAGE, "max_tokens": 2}).json["stop_reason"] == "max_tokens"
    )


def test_a_message_that_uses_tools(written: tuple[Script, Served], script: Script) -> None:
    script.text = CALLS
    address, tools = written[1].address, [{"name": "weather", "input_schema": CITY}]
    whole = ask(address, "POST", "/v1/messages", {**MESSAGE, "tools": tools}).json
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
    assert (whole["stop_reason"], whole["content"][2]["input"]) == ("tool_use", {"city": "Bern"})
    stream = events(ask(address, "POST", "/v1/messages", {**MESSAGE, "tools": tools, "stream": True}).text)
    given = {1: "", 2: ""}
    for one in stream:
        if one["type"] == "content_block_delta" and one["delta"]["type"] == "input_json_delta":
            given[one["index"]] += one["delta"]["partial_json"]
    assert [json.loads(one) for one in given.values()] == [block["input"] for block in whole["content"][1:]]
    assert stream[-2]["delta"]["stop_reason"] == "tool_use"
    script.text = "It rains."
    result = {"type": "tool_result", "tool_use_id": whole["content"][1]["id"], "content": "rain"}
    turns = [
        *MESSAGE["messages"],
        {"role": "assistant", "content": whole["content"][:2]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    again = ask(address, "POST", "/v1/messages", {**MESSAGE, "messages": turns, "tools": tools}).json
    assert again["content"] == [{"type": "text", "text": "It rains."}]
    told = tokenizer().decode(script.asked[-1][0])
    assert told.index("<tool_call>\n") < told.index("rain") < told.index("And now?")


def test_what_a_message_cannot_do_is_named(tiny_served: Served) -> None:
    for more in ({"thinking": {"type": "so so"}}, {"max_tokens": 0}, {"messages": []}, {"temperature": -1}):
        answer = ask(tiny_served.address, "POST", "/v1/messages", {**MESSAGE, **more})
        assert (answer.status, answer.json["type"]) == (400, "error")
        assert answer.error["type"] == "invalid_request_error"
        assert next(iter(more)) in answer.error["message"]
