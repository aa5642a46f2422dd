"""Serve /v1/messages: chat completions in Anthropic's form."""

import json
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api.keys import KINDS, ApiError, as_api_error
from hierchat.api.openai import ChatRequest, Deltas, reply_request, whole
from hierchat.api.requests import RunningReply, Schema, Serving, Strict, event_stream, fields

_KINDS = KINDS | {413: "request_too_large"}

CacheControl = dict[str, str]
"""A hint of Anthropic's protocol to cache a prefix, which is ignored: prefixes are reused without it."""


class TextBlock(Strict):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] = Field(default_factory=list, max_length=0)


class ThinkingBlock(Strict):
    """Thought of the model in an earlier message; Anthropic's signature of it is ignored."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ThinkingOptions(Strict):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str = ""


class ToolUseBlock(Strict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(Strict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False
    cache_control: CacheControl | None = None


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class MessageParam(Strict):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class ToolDescription(Strict):
    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: Schema
    cache_control: CacheControl | None = None

    @property
    def function(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self.input_schema}


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class MessagesRequest(Strict):
    """Body of a request to /v1/messages."""

    model: str = ""
    max_tokens: int = Field(ge=1)
    messages: list[MessageParam] = Field(min_length=1)
    system: str | list[TextBlock] = ""
    stop_sequences: list[str] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[ToolDescription] = Field(default_factory=list)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingOptions = ThinkingOptions(type="disabled")
    metadata: dict[str, Any] = Field(default_factory=dict)
    service_tier: Literal["auto", "standard_only"] = "auto"

    @property
    def thinks(self) -> bool:
        return self.thinking.type != "disabled"

    def as_chat(self) -> ChatRequest:
        """Turn the request into a ChatRequest. Raises pydantic's ValidationError."""
        kept = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
        choices: dict[str, Any] = {"any": "required", "auto": "auto", "none": "none"}
        named = {"type": "function", "function": {"name": self.tool_choice.name}}
        # Left out and disabled are not the same: what the model does by itself, and no thought at all.
        thinking = {"enable_thinking": self.thinks} if "thinking" in self.model_fields_set else {}
        return ChatRequest.model_validate(
            {name: getattr(self, name) for name in kept}
            | {
                "messages": _messages(self),
                "stop": self.stop_sequences,
                "chat_template_kwargs": thinking,
                "tools": [{"type": "function", "function": one.function} for one in self.tools],
                "tool_choice": choices.get(self.tool_choice.type, named),
                "parallel_tool_calls": False if self.tool_choice.disable_parallel_tool_use else None,
            }
        )


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _messages(params: MessagesRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if system := _text(params.system):
        found.append({"role": "system", "content": system})
    for turn in params.messages:
        if isinstance(turn.content, str):
            found.append({"role": turn.role, "content": turn.content})
            continue
        text = "\n".join(block.text for block in turn.content if isinstance(block, TextBlock))
        thought = "\n".join(block.thinking for block in turn.content if isinstance(block, ThinkingBlock))
        thought = thought if turn.role == "assistant" else ""
        calls = []
        for block in turn.content:
            if isinstance(block, ToolResultBlock):
                content = _text(block.content)
                found.append({"role": "tool", "content": content, "tool_call_id": block.tool_use_id})
            elif isinstance(block, ToolUseBlock):
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "function": function})
        if text or calls:
            message = {"role": turn.role, "content": text} | ({"tool_calls": calls} if calls else {})
            found.append(message | ({"reasoning_content": thought} if thought else {}))
    return found


async def messages(request: Request, serving: Serving) -> Response:
    params = await fields(request, MessagesRequest)
    chat = params.as_chat()
    running = await serving.begin(request, reply_request(chat, serving.service))
    if params.stream:
        return await event_stream(_events(chat, running, thoughts=params.thinks), failure)
    message, finish = whole(chat, await running.last())
    blocks = _Blocks(params.thinks)
    list(chain(blocks.of(message), blocks.end()))  # the events are not sent: only the content counts
    body = _message(running, blocks.content, *_reason(running, finish))
    return JSONResponse(body | {"usage": _usage(running)})


def error_body(problem: ApiError) -> dict[str, Any]:
    kind = _KINDS.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(problem)}}


def _message(
    running: RunningReply, content: list[dict[str, Any]], reason: str | None, stopped_by: str | None
) -> dict[str, Any]:
    head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant"}
    ended = {"stop_reason": reason, "stop_sequence": stopped_by}
    return head | {"model": running.model, "content": content} | ended


def _usage(running: RunningReply) -> dict[str, Any]:
    prompt, written = running.tokens()
    return {"input_tokens": prompt, "output_tokens": written, "hierchat": running.figures()}


def _reason(running: RunningReply, finish: str) -> tuple[str, str | None]:
    """Return why the reply ended, and the stop string, if it was one."""
    if finish != "stop":
        return {"length": "max_tokens", "tool_calls": "tool_use"}[finish], None
    reply = running.reply
    mark = reply.statistics.stop_string if reply is not None else None
    return ("stop_sequence", mark) if mark else ("end_turn", None)


class _Blocks:
    """Builds the content of a message from deltas, and the events that stream it; the last block is open."""

    def __init__(self, thoughts: bool) -> None:
        self._thoughts = thoughts
        self.content: list[dict[str, Any]] = []

    def of(self, delta: dict[str, Any]) -> Iterator[str]:
        if (thought := delta.get("reasoning_content")) and self._thoughts:
            yield from self._grow("thinking", thought)
        if text := delta.get("content"):
            yield from self._grow("text", text)
        for call in delta.get("tool_calls", []):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield from self._begin({"type": "tool_use", "id": call["id"], "name": name, "input": {}})
            yield self._grown({"type": "input_json_delta", "partial_json": arguments})
            with suppress(ValueError):  # it was a text that is no JSON
                self.content[-1]["input"] = json.loads(arguments)

    def end(self) -> Iterator[str]:
        """End the last block."""
        if self.content:
            yield _event("content_block_stop", index=len(self.content) - 1)

    def _begin(self, block: dict[str, Any]) -> Iterator[str]:
        yield from self.end()
        self.content.append(block)
        yield _event("content_block_start", index=len(self.content) - 1, content_block=block)

    def _grow(self, kind: str, more: str) -> Iterator[str]:
        if not self.content or self.content[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            yield from self._begin({"type": kind, kind: ""} | signature)
        self.content[-1][kind] += more
        yield self._grown({"type": f"{kind}_delta", kind: more})

    def _grown(self, delta: dict[str, str]) -> str:
        return _event("content_block_delta", index=len(self.content) - 1, delta=delta)


def _event(kind: str, **more: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | more, ensure_ascii=False)}\n\n"


def failure(error: Exception) -> str:
    """Return a server-sent event with the error that ended a reply after its first words."""
    return _event("error", error=error_body(as_api_error(error))["error"])


async def _events(chat: ChatRequest, running: RunningReply, *, thoughts: bool) -> AsyncGenerator[str, None]:
    deltas, blocks, begun = Deltas(chat), _Blocks(thoughts), False
    async with aclosing(running.frames()) as frames:
        async for frame in frames:
            if not begun:
                begun = True
                usage = {"input_tokens": running.tokens()[0], "output_tokens": 0}
                yield _event("message_start", message=_message(running, [], None, None) | {"usage": usage})
            for delta in deltas.of(frame):
                for event in blocks.of(delta):
                    yield event
            if frame.phase == "done":
                for event in blocks.end():
                    yield event
                reason, mark = _reason(running, deltas.finish(frame))
                ended = {"stop_reason": reason, "stop_sequence": mark}
                yield _event("message_delta", delta=ended, usage=_usage(running))
                yield _event("message_stop")
