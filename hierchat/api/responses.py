"""Serve /v1/responses, OpenAI's newer protocol. Nothing is kept, so a request brings its whole conversation along."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api.chat_completions import Block, BlockEvent, all_blocks, changes
from hierchat.api.chat_request import ChatRequest, function_tool, reply_request
from hierchat.api.fields import OpenAIRequest, Schema, Strict
from hierchat.api.keys import as_api_error
from hierchat.api.requests import ReplyStreams, Serving, event_stream, fields

# The outputs of a response, and the events that tell of them: a block each, a thought, a message or a call.
_IDS = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_GROWS = {"reasoning": "reasoning_text", "message": "output_text", "function_call": "function_call_arguments"}
"""What the events of their growth are called."""


def _part(block: Block, text: str) -> dict[str, Any]:
    if block.thought:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class Text(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] = Field(default_factory=list, max_length=0)
    logprobs: list[Any] = Field(default_factory=list, max_length=0)


class Item(Strict):
    """Base of the output items that a client sends back as they came."""

    id: str = ""
    status: str = ""


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Text]
    phase: str = ""


class CallItem(Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str


class ThoughtText(Strict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ThoughtItem(Item):
    type: Literal["reasoning"]
    summary: list[ThoughtText] = Field(default_factory=list)
    content: list[ThoughtText] = Field(default_factory=list)
    encrypted_content: Literal[""] = ""

    @property
    def text(self) -> str:
        """Return the thought, in full if the client sends it, else its summary."""
        return "\n".join(part.text for part in self.content or self.summary)


class FlatTool(Strict):
    type: Literal["function"]
    name: str
    description: str = ""
    parameters: Schema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


class Format(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str = ""
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool = True


class TextOptions(Strict):
    format: Format = Format(schema=None)
    verbosity: Literal["medium"] = "medium"


class ReasoningOptions(Strict):
    """Field `reasoning` of a request. `summary` is ignored: thoughts are sent whole."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: str = ""


class ToolName(Strict):
    type: Literal["function"]
    name: str


class ResponseRequest(OpenAIRequest):
    """Body of a request to /v1/responses."""

    input: str | Annotated[list[MessageItem | CallItem | ResultItem | ThoughtItem], Field(min_length=1)]
    instructions: str = ""
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    tools: list[FlatTool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | ToolName = "auto"
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] = "disabled"
    include: list[Any] = Field(default_factory=list, max_length=0)

    def as_chat(self) -> ChatRequest:
        """Turn the request into a ChatRequest. Raises pydantic's ValidationError."""
        kept = ("model", "temperature", "top_p", "top_k", "min_p", "seed", "stream", "parallel_tool_calls")
        choice: Any = self.tool_choice
        if isinstance(choice, ToolName):
            choice = {"type": "function", "function": {"name": choice.name}}
        form = self.text.format
        schema: Any = None
        if form.type == "json_schema":
            schema = {"name": form.name, "schema": form.schema_, "strict": form.strict}
        return ChatRequest.model_validate(
            {name: getattr(self, name) for name in kept}
            | {
                "messages": _messages(self),
                "max_completion_tokens": self.max_output_tokens,
                "reasoning_effort": self.reasoning.effort,
                "response_format": {"type": form.type, "json_schema": schema},
                # Clients of this form say `strict` by themselves; a call of one's own accord cannot be held to it.
                "tools": [function_tool(one.name, one.description, one.parameters) for one in self.tools],
                "tool_choice": choice,
            }
        )


def _messages(params: ResponseRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if params.instructions:
        found.append({"role": "system", "content": params.instructions})
    if isinstance(params.input, str):
        return [*found, {"role": "user", "content": params.input}]
    thought: dict[str, str] = {}  # of the next reply
    for item in params.input:
        match item:
            case ThoughtItem():
                thought = {"reasoning_content": item.text}
                continue
            case MessageItem():
                content = item.content
                text = content if isinstance(content, str) else "\n".join(part.text for part in content)
                found.append(
                    {"role": item.role, "content": text} | (thought if item.role == "assistant" else {})
                )
            case CallItem():
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": ""} | thought)
                function = {"name": item.name, "arguments": item.arguments}
                found[-1].setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
            case ResultItem():
                found.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        thought = {}
    return found


async def respond(request: Request, serving: Serving) -> Response:
    params = await fields(request, ResponseRequest)
    chat = params.as_chat()
    running = await serving.begin(request, [reply_request(chat, serving.service)], 1)
    body = _ResponseBody(params, running)
    if params.stream:
        return await event_stream(_events(chat, running, body), body.failed)
    blocks, finish = await all_blocks(chat, running, thoughts=True)
    return JSONResponse(body.response([body.item(block) for block in blocks], finish))


class _ResponseBody:
    """Builds one response while the reply is written: its output items, and the events that announce them."""

    def __init__(self, params: ResponseRequest, running: ReplyStreams) -> None:
        self._params = params
        self._running = running
        self._id, self._created = f"resp_{secrets.token_hex(12)}", int(time.time())
        self._mark = secrets.token_hex(12)
        self._sent = count()

    def response(self, output: list[dict[str, Any]], finish: str | None) -> dict[str, Any]:
        """Return the whole response as a JSON object; `finish` None: the reply is in progress."""
        params, cut = self._params, finish == "length"
        prompt, written = self._running.tokens()
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": self._running.thought_tokens()},
            "total_tokens": prompt + written,
            "hierchat": self._running.figures(),
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if finish is None else "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "instructions": params.instructions or None,
            "max_output_tokens": params.max_output_tokens,
            "metadata": params.metadata,
            "model": self._running.model,
            "output": output,
            "parallel_tool_calls": params.parallel_tool_calls is True,
            "previous_response_id": None,
            "store": False,
            "temperature": params.temperature,
            "text": params.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": params.model_dump()["tool_choice"],
            "tools": [tool.model_dump() for tool in params.tools],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None if finish is None else usage,
        }

    def event(self, kind: str, **more: Any) -> str:
        data = {"type": kind, "sequence_number": next(self._sent)} | more
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    def failed(self, error: Exception) -> str:
        problem = as_api_error(error)
        code = problem.code or problem.kind
        return self.event("error", message=str(problem), code=code, param=problem.param)

    def item(self, block: Block, status: str = "completed") -> dict[str, Any]:
        """Return a block as an output item; without its text while that is in progress."""
        kind = "function_call" if block.id else "reasoning" if block.thought else "message"
        id = f"{_IDS[kind]}_{self._mark}{block.number}"
        head: dict[str, Any] = {"id": id, "type": kind, "status": status}
        if block.id:
            return head | {"call_id": block.id, "name": block.name, "arguments": block.text}
        content = [] if status == "in_progress" else [_part(block, block.text)]
        more: dict[str, Any] = {"summary": []} if block.thought else {"role": "assistant"}
        return head | more | {"content": content}

    def events(self, change: BlockEvent) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of a block's change: each name without `response.` before it, and its fields."""
        block = change.block
        item = self.item(block, "completed" if change.what == "ends" else "in_progress")
        output = {"output_index": block.number}
        inside = {"item_id": item["id"]} | output | ({} if block.id else {"content_index": 0})
        grows = _GROWS[item["type"]]
        logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
        match change.what:
            case "begins":
                yield "output_item.added", output | {"item": item}
                if not block.id:
                    yield "content_part.added", inside | {"part": _part(block, "")}
            case "grows":
                yield f"{grows}.delta", inside | {"delta": change.more} | logprobs
            case "ends" if block.id:
                yield f"{grows}.done", inside | {"name": block.name, "arguments": block.text}
                yield "output_item.done", output | {"item": item}
            case "ends":
                yield f"{grows}.done", inside | {"text": block.text} | logprobs
                yield "content_part.done", inside | {"part": _part(block, block.text)}
                yield "output_item.done", output | {"item": item}


async def _events(chat: ChatRequest, running: ReplyStreams, body: _ResponseBody) -> AsyncGenerator[str, None]:
    output: list[dict[str, Any]] = []
    async with aclosing(changes(chat, running, thoughts=True)) as happening:
        async for change in happening:
            if change is None:
                yield body.event("response.created", response=body.response([], None))
                yield body.event("response.in_progress", response=body.response([], None))
                continue
            if isinstance(change, str):
                whole = body.response(output, change)
                yield body.event(f"response.{whole['status']}", response=whole)
                continue
            for kind, more in body.events(change):
                yield body.event(f"response.{kind}", **more)
            if change.what == "ends":
                output.append(body.item(change.block))
