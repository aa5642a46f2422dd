"""What a model thought before it answered, through the endpoint: apart from the answer, in each form's own way."""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Iterator

import pytest

from hierchat.api.responses import ResponseRequest
from hierchat.reasoning import join_reasoning
from tests.api.raw import ask
from tests.api.scripted import Script, Served, make_slot, scripted, serving
from tests.api.test_openai import client
from tests.api.test_other_forms import events
from tests.testing.thinkers import QWEN3

THOUGHT = "The user says hello."
ANSWER = "Hello there."
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Script, Served]]:
    """A model that thinks, and lets one choose."""
    script = Script(join_reasoning(THOUGHT, ANSWER))
    with serving(tmp_path_factory.mktemp("thinking"), make_slot(scripted(script, QWEN3))) as served:
        yield script, served


def prompt_of(script: Script, served: Served) -> str:
    return decoded(served, script.asked[-1][0])


def decoded(served: Served, tokens: list[int]) -> str:
    return served.service.slot.model.prompts.tokenizer.decode(tokens)


def test_a_chat_completion(thinking: tuple[Script, Served]) -> None:
    asking = client(thinking[1]).chat.completions
    message = asking.create(model="tiny", messages=MESSAGES).choices[0].message
    assert (message.content, message.reasoning_content) == (ANSWER, THOUGHT)
    thought = answer = ""
    for chunk in asking.create(model="tiny", messages=MESSAGES, stream=True):
        delta = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        answer += delta.content or ""
        assert not (answer and getattr(delta, "reasoning_content", None))
    assert (thought.strip(), answer) == (THOUGHT, ANSWER)


def test_a_thought_that_comes_back_is_not_told_again(thinking: tuple[Script, Served]) -> None:
    script, served = thinking
    said = [
        *MESSAGES,
        {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT},
        {"role": "user", "content": "again"},
    ]
    client(served).chat.completions.create(model="tiny", messages=said)
    assert ANSWER in prompt_of(script, served)
    assert THOUGHT not in prompt_of(script, served)


@pytest.mark.parametrize(
    ("asked", "off"),
    [
        ({}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"reasoning_effort": "none"}, True),
        ({"reasoning_effort": "high"}, False),
        # A form has no place for a thought.
        ({"response_format": {"type": "json_object"}, "reasoning_effort": "high"}, True),
    ],
)
def test_whether_it_thinks(thinking: tuple[Script, Served], asked: dict, off: bool) -> None:
    script, served = thinking
    before = len(script.asked)
    ask(served.address, "POST", "/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, **asked})
    if len(script.asked) == before:  # a model elsewhere writes no form
        assert "response_format" in asked
        return
    assert prompt_of(script, served).endswith("<think>\n\n</think>\n\n") == off


def test_messages(thinking: tuple[Script, Served]) -> None:
    served = thinking[1]
    asked = {"model": "tiny", "max_tokens": 100, "messages": MESSAGES}
    plain = ask(served.address, "POST", "/v1/messages", asked).json
    assert [block["type"] for block in plain["content"]] == ["text"]
    asked |= {"thinking": {"type": "enabled", "budget_tokens": 50}}
    whole = ask(served.address, "POST", "/v1/messages", asked).json
    assert whole["content"][0] == {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    assert whole["content"][1]["text"] == ANSWER
    told = events(ask(served.address, "POST", "/v1/messages", asked | {"stream": True}).text)
    kinds = [one["content_block"]["type"] for one in told if one["type"] == "content_block_start"]
    assert kinds == ["thinking", "text"]
    deltas = [one["delta"] for one in told if one["type"] == "content_block_delta"]
    assert "".join(one.get("thinking", "") for one in deltas).strip() == THOUGHT
    assert "".join(one.get("text", "") for one in deltas) == ANSWER
    asked["messages"] = [
        *MESSAGES,
        {"role": "assistant", "content": whole["content"]},
        {"role": "user", "content": "again"},
    ]
    assert ask(served.address, "POST", "/v1/messages", asked).json["content"][1]["text"] == ANSWER


def test_a_response(thinking: tuple[Script, Served]) -> None:
    script, served = thinking
    asking = client(served).responses
    whole = asking.create(model="tiny", input="hello")
    thought, said = whole.output
    assert (thought.type, thought.summary, thought.status) == ("reasoning", [], "completed")
    assert [(part.type, part.text) for part in thought.content] == [("reasoning_text", THOUGHT)]
    assert (said.type, whole.output_text) == ("message", ANSWER)
    tokens = served.service.slot.model.prompts.tokenizer(script.text, add_special_tokens=False)["input_ids"]
    inside = next(at for at in range(len(tokens)) if "</think>" in decoded(served, tokens[: at + 1])) + 1
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens == inside < whole.usage.output_tokens
    again = asking.create(
        model="tiny",
        input=[
            {"role": "user", "content": "hello"},
            *(item.model_dump(exclude_none=True) for item in whole.output),
            {"role": "user", "content": "again"},
        ],
    )
    assert again.output_text == ANSWER
    assert ANSWER in prompt_of(script, served)
    none = asking.create(model="tiny", input="hello", reasoning={"effort": "none"})
    assert none.output_text == ANSWER
    assert prompt_of(script, served).endswith("</think>\n\n")


def test_a_response_that_is_streamed(thinking: tuple[Script, Served]) -> None:
    with client(thinking[1]).responses.stream(model="tiny", input="hello") as stream:
        told = list(stream)
        last = stream.get_final_response()
    of_thought = [one for one in told if getattr(one, "output_index", None) == 0]
    assert {one.item_id for one in of_thought if hasattr(one, "item_id")} == {last.output[0].id}
    assert [one.type.removeprefix("response.") for one in of_thought if not one.type.endswith("delta")] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    deltas = "".join(one.delta for one in told if one.type == "response.reasoning_text.delta")
    assert deltas == of_thought[-1].item.content[0].text == last.output[0].content[0].text
    assert deltas.strip() == THOUGHT
    assert [item.type for item in last.output] == ["reasoning", "message"]
    assert last.output_text == ANSWER


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "reasoning", "encrypted_content": "gAAAAA"}, "input"),
        ({"type": "reasoning", "content": [{"type": "output_text", "text": "so"}]}, "input"),
    ],
)
def test_a_thought_that_nobody_here_can_read_is_refused(
    thinking: tuple[Script, Served], item: dict, param: str
) -> None:
    asked = {"model": "tiny", "input": [{"role": "user", "content": "hello"}, item]}
    answer = ask(thinking[1].address, "POST", "/v1/responses", asked)
    assert answer.status == 400
    assert answer.error["param"].startswith(param)


def test_a_thought_goes_with_the_reply_that_it_led_to() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": THOUGHT}],
    }
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]}
    given = [*MESSAGES, thought, call, result, thought, said, *MESSAGES, said]
    messages = ResponseRequest.model_validate({"input": given}).as_chat().messages
    assert [(one.role, getattr(one, "reasoning_content", "")) for one in messages] == [
        ("user", ""),
        ("assistant", THOUGHT),
        ("tool", ""),
        ("assistant", THOUGHT),
        ("user", ""),
        ("assistant", ""),
    ]
