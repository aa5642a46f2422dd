"""Serve /v1/messages: chat completions in Anthropic's form."""

import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api.chat_completions import Block, all_blocks, changes
from hierchat.api.chat_request import ChatRequest, function_tool, reply_request
from hierchat.api.fields import Schema, Strict
from hierchat.api.keys import ApiError, as_api_error
from hierchat.api.requests import RunningReply, Serving, event_stream, fields

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class CacheControl(Strict):
    """A hint of Anthropic's protocol to cache a prefix, which is ignored: prefixes are reused without it."""

    type: str
    ttl: str = ""


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


class MessageParam(Strict):
    role: Literal["user", "assistant"]
    content: (
        str
        | list[
            Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
        ]
    )


class ToolDescription(Strict):
    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: Schema
    cache_control: CacheControl | None = None


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
                "tools": [function_tool(one.name, one.description, one.input_schema) for one in self.tools],
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
    try:
        params = await fields(request, MessagesRequest)
        chat = params.as_chat()
        running = await serving.begin(request, reply_request(chat, serving.service))
        if params.stream:
            return await event_stream(_events(chat, running, thoughts=params.thinks), _failed)
        blocks, finish = await all_blocks(chat, running, thoughts=params.thinks)
    except Exception as error:
        problem = as_api_error(error)
        return JSONResponse(failure(problem), problem.status, problem.headers)
    body = _message(running, [_block(block) for block in blocks], *_reason(running, finish))
    return JSONResponse(body | {"usage": _usage(running)})


def failure(problem: ApiError) -> dict[str, Any]:
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


def _reason(
    running: RunningReply, finish: str
) -> tuple[str, str | None]:  # and the stop string, if it was one
    if finish != "stop":
        return {"length": "max_tokens", "tool_calls": "tool_use"}[finish], None
    reply = running.reply
    mark = reply.statistics.stop_string if reply is not None else None
    return ("stop_sequence", mark) if mark else ("end_turn", None)


def _block(block: Block, *, empty: bool = False) -> dict[str, Any]:
    if block.thought:
        return {"type": "thinking", "thinking": "" if empty else block.text, "signature": ""}
    if not block.id:
        return {"type": "text", "text": "" if empty else block.text}
    try:
        given = {} if empty else json.loads(block.text)
    except ValueError:  # cut in the middle
        given = {}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": given}


def _event(kind: str, **more: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | more, ensure_ascii=False)}\n\n"


def _failed(error: Exception) -> str:
    return _event("error", error=failure(as_api_error(error))["error"])


async def _events(chat: ChatRequest, running: RunningReply, *, thoughts: bool) -> AsyncGenerator[str, None]:
    async with aclosing(changes(chat, running, thoughts=thoughts)) as happening:
        async for change in happening:
            if change is None:
                usage = {"input_tokens": running.tokens()[0], "output_tokens": 0}
                yield _event("message_start", message=_message(running, [], None, None) | {"usage": usage})
            elif isinstance(change, str):
                reason, mark = _reason(running, change)
                delta = {"stop_reason": reason, "stop_sequence": mark}
                yield _event("message_delta", delta=delta, usage=_usage(running))
                yield _event("message_stop")
            elif change.what == "begins":
                block = _block(change.block, empty=True)
                yield _event("content_block_start", index=change.block.number, content_block=block)
            elif change.what == "ends":
                yield _event("content_block_stop", index=change.block.number)
            else:
                delta = {"type": "text_delta", "text": change.more}
                if change.block.thought:
                    delta = {"type": "thinking_delta", "thinking": change.more}
                if change.block.id:
                    delta = {"type": "input_json_delta", "partial_json": change.more}
                yield _event("content_block_delta", index=change.block.number, delta=delta)
