"""What a model thought before it answered, through the endpoint: apart from the answer, in each form's own way."""

# mypy: ignore-errors
from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hierchat.thoughts import joined
from tests.server.raw import ask
from tests.server.scripted import Script, Served, make_host, scripted, serving
from tests.server.test_openai import client
from tests.server.test_other_forms import events
from tests.thinkers import QWEN3

THOUGHT = "The user says hello."
ANSWER = "Hello there."
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Script, Served]]:
    """A model that thinks, and lets one choose."""
    script = Script(joined(THOUGHT, ANSWER))
    with serving(tmp_path_factory.mktemp("thinking"), make_host(scripted(script, QWEN3))) as served:
        yield script, served


def prompt_of(script: Script, served: Served) -> str:
    return served.service.host.hosted.prompts.tokenizer.decode(script.asked[-1][0])


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


def test_a_response_leaves_the_thought_out(thinking: tuple[Script, Served]) -> None:
    script, served = thinking
    asking = client(served).responses
    whole = asking.create(model="tiny", input="hello", reasoning={"effort": "none"})
    assert whole.output_text == ANSWER
    assert prompt_of(script, served).endswith("</think>\n\n")
    assert THOUGHT not in json.dumps(whole.model_dump())
