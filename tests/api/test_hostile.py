"""Every field of every address with what nobody should send: it is refused with 400, or does no harm; never 500."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from hierchat import logs
from hierchat.access.limits import InvalidJson, parse_json
from hierchat.api.anthropic import MessagesRequest
from hierchat.api.keys import as_api_error
from hierchat.api.openai import ChatRequest, CompletionRequest
from hierchat.chat.completions import NoModel
from hierchat.config import cache_dir, data_dir
from hierchat.models.progress import BrokenFileError
from hierchat.store.errors import DatabaseCorrupt
from tests.api.scripted import Script, Served
from tests.testing.raw import Answer
from tests.testing.raw import ask_endpoint as ask

Json = dict[str, Any]
QUESTION = {"role": "user", "content": "hello"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
BODIES: list[tuple[str, type[BaseModel], Json]] = [
    ("/v1/chat/completions", ChatRequest, {
        "messages": [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                     {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "a"}],
        "max_tokens": 1, "tools": [TOOL]}),
    ("/v1/chat/completions", ChatRequest, {"messages": [QUESTION], "max_tokens": 1, "response_format": SCHEMA,
                                           "chat_template_kwargs": {}, "stream_options": {}}),
    ("/v1/completions", CompletionRequest, {"prompt": "hello", "max_tokens": 1}),
    ("/v1/messages", MessagesRequest, {
        "messages": [QUESTION, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}],
        "max_tokens": 1, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
]  # fmt: skip


def deep(levels: int, opens: str = "[", closes: str = "]") -> str:
    return opens * levels + closes * levels


HOSTILE = [
    '"a\\udfffb"', '"\\u0000"', '"\x7f\u202e\ufeff"', '""', "NaN", "1e999", "-1", "0", "9" * 30, "9" * 5000, "0.1",
    "true", "[]", "{}", '{"":{}}', "[null]", '["\\ud800"]',
    deep(90), deep(101), deep(100_000), deep(95, '{"a":', "1" + "}")[:-96] + "}" * 95,
    '{"type": "object", "type": 1}', '{"$ref": "#"}', '{"type": "string", "pattern": "(a*)*b{1,99999}"}',
    '{"minimum": 1e300, "type": "integer"}', '"' + "a" * 100_000 + '"',
]  # fmt: skip
"""As JSON, since some of it cannot be written by json.dumps."""
MARK = "@here@"


def places(value: Any) -> Iterator[Any]:
    """`value` with MARK in place of each of its parts, down to the last."""
    for key in value if isinstance(value, dict) else range(len(value)):
        copied = value.copy()
        copied[key] = MARK
        yield copied
        if isinstance(value[key], dict | list) and value[key]:
            for inside in places(value[key]):
                copied = value.copy()
                copied[key] = inside
                yield copied


def bodies(body: Json, kind: type[BaseModel]) -> Iterator[Json]:
    """With MARK in each field that there is, and in each part of what is given."""
    yield from places(body)
    for name, field in kind.model_fields.items():
        if (said := field.alias or name) not in body:
            yield body | {said: MARK}


def refused(kind: type[BaseModel], raw: bytes) -> str:
    """By what a request's fields are refused before any of them is used, if they are: it is answered in one way."""
    try:
        given = parse_json(raw)
        kind.model_validate(given)
    except InvalidJson:
        return "no JSON"
    except ValidationError as error:
        return f"fields: {as_api_error(error).status}"
    return ""


def sound(answer: Answer) -> bool:
    return answer.status == 200 or (answer.status in (400, 404) and "error" in answer.json)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda said: said[:20].encode("unicode_escape").decode())
@pytest.mark.parametrize("which", ["computed here", "with tools"])
def test_no_field_fails(tiny_served: Served, endpoint: Served, which: str, hostile: str) -> None:
    """With tools: by a model that takes them, which is computed elsewhere and so knows no grammars. What is refused
    before it is used is sent once to each address, all else in each of its places."""
    failed, count, sent = [], 0, set()
    served = tiny_served if which == "computed here" else endpoint
    for path, kind, body in BODIES:
        if which == "with tools" and "tools" not in body:
            continue
        for marked in bodies(body, kind):
            said = json.dumps(marked).replace(f'"{MARK}"', hostile)
            raw = said.encode("utf-8", "surrogatepass")
            count += 1
            if (why := refused(kind, raw)) and (path, why) in sent:
                continue
            sent.add((path, why))
            answer = ask(served.address, "POST", path, raw)
            assert not why or (answer.status, why) in [(400, "no JSON"), (400, "fields: 400")]
            if not sound(answer):
                failed.append((path, said[:200], answer.status, answer.text[:300]))
    assert failed == []
    assert count > 60


LINKS = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(3000)}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a0", "$defs": LINKS | {"a3000": {"type": "string"}}},
        {"type": "object", "required": [f"k{number}" for number in range(60_000)]},
    ],
    ids=["links", "keys"],
)
def test_no_schema_ends_the_server(tiny_served: Served, schema: Json) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    for path, body in (
        ("/v1/chat/completions", {"messages": [QUESTION], "response_format": form}),
        ("/v1/chat/completions", {"messages": [QUESTION], "tools": tools, "tool_choice": "required"}),
        (
            "/v1/messages",
            {"messages": [QUESTION], "max_tokens": 1, "tools": [{"name": "f", "input_schema": schema}]},
        ),
    ):
        answer = ask(tiny_served.address, "POST", path, body)
        said = ("too much time or memory", "at most 262,144 characters", "was not made to call tools")
        assert (answer.status, any(one in answer.text for one in said)) == (400, True), answer.text
    assert ask(tiny_served.address, "GET", "/health").status == 200


def test_arguments_that_are_nested_without_end(endpoint: Served) -> None:
    calls = [CALL | {"function": {"name": "f", "arguments": deep(100_000)}}]
    body = {"messages": [QUESTION, {"role": "assistant", "tool_calls": calls}]}
    answer = ask(endpoint.address, "POST", "/v1/chat/completions", body)
    assert (answer.status, "nested more than 100 levels" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "path", ["/v1/models/%00", "/v1/models/%ff%ed%a0%80", "/v1/models/" + "x" * 9000, "/v1/%2e%2e/x"]
)
def test_no_name_fails(tiny_served: Served, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer \xff\x00"[:-1]}, {"x-api-key": "\xed\xa0\x80"}):
        assert ask(tiny_served.address, "GET", path, headers=headers).status == 404


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "kind", [ZeroDivisionError, DatabaseCorrupt, NoModel, BrokenFileError, partial(OSError, 28, "full")]
)
def test_no_error_tells_a_program_where_files_lie(
    endpoint: Served, script: Script, monkeypatch: pytest.MonkeyPatch, kind: Any, begun: bool
) -> None:
    """Of what was not expected, of a database or a model that fails, and of each while the reply is written."""
    place, generate = str(endpoint.store.path), script.generate

    def failing(*args: Any, **more: Any) -> Any:
        for number, step in enumerate(generate(*args, **more)):
            if number == 2 * begun:
                raise kind(f"{place} and {cache_dir() / 'blocks' / 'model'} cannot be read.")
            yield step

    monkeypatch.setattr(script, "generate", failing)
    for path, _, body in BODIES[:5]:
        body = {name: value for name, value in body.items() if name not in ("response_format", "text")}
        for stream in (False, True):
            answer = ask(endpoint.address, "POST", path, body | {"stream": stream, "max_tokens": 9})
            assert "[DONE]" not in answer.text
            said = answer.text.replace("\\/", "/")
            assert "error" in said or answer.status == 400
            for hidden in (place, data_dir(), cache_dir(), logs.log_path()):
                assert str(hidden) not in said
