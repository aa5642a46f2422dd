"""How much a model thinks, asked of a server."""

from __future__ import annotations

from typing import Any

import pytest

from hierchat.config import GenerationSettings, Reasoning
from hierchat.engine.engine import GenerationRequest, Step
from hierchat.engine.remote.openai_client import OpenAIClient, ServerError
from hierchat.engine.remote.openai_engine import RemoteEngine, TextTokens, asked, choices
from hierchat.models.catalogue import OpenAI
from tests.testing.openai_server import Script


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


def written(url: str, **settings: Any) -> list[Step]:
    server = OpenAIClient.of_catalogue(OpenAI(url=url))
    engine = RemoteEngine(server, server.model("scripted"), 0)
    prompt = list(TextTokens().apply_chat_template([{"role": "user", "content": "?"}])["input_ids"])
    return list(engine.generate(GenerationRequest(prompt, GenerationSettings(**settings))))


def test_what_is_chosen_is_sent(url: str, script: Script) -> None:
    script.models[1]["owned_by"] = "vllm"
    assert not [step.notice for step in written(url, reasoning="off") if step.notice]
    (said,) = script.asked
    assert said["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert "reasoning_effort" not in said


def test_a_server_that_refuses_is_asked_once_more_without_and_it_is_said(url: str, script: Script) -> None:
    script.unknown = "reasoning_effort"
    steps = written(url, reasoning="high", seed=3)
    assert "".join(step.text or "" for step in steps) == "Hello there."
    assert [step.notice for step in steps if step.notice] == [
        f"The server at {url} does not let one choose how much this model thinks, so that was left out."
    ]
    first, second = script.asked
    assert first == second | {"reasoning_effort": "high"}


def test_what_is_refused_for_another_reason_is_said_as_it_is(url: str, script: Script) -> None:
    script.refuses = (400, "This model's maximum context length is 4096 tokens.")
    with pytest.raises(ServerError, match="This chat is longer than scripted"):
        written(url, reasoning="high")
    assert len(script.asked) == 2
    script.refuses = (503, "Loading model")
    with pytest.raises(ServerError, match="Loading model"):
        written(url, reasoning="high")
    assert len(script.asked) == 3
