"""Serve OpenAI's protocol: /v1/chat/completions, on which /v1/messages rests, and /v1/completions, which continues a
text, as editors ask for it."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Literal, Self

from llguidance import LLMatcher
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.access.limits import InvalidJson, parse_json
from hierchat.api import requests
from hierchat.api.keys import ApiError
from hierchat.api.requests import Schema, Strict
from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.chat.tool_calls import CLOSES as CALL_CLOSES
from hierchat.chat.tool_calls import WHITESPACE, CallReader, HoldBack, forced, optional
from hierchat.config import GenerationSettings, Reasoning
from hierchat.reasoning import CLOSES, OPENS, join_reasoning, split_reasoning
from hierchat.runtime.prompt import Prompt
from hierchat.runtime.prompt import PromptMessage as Message
from hierchat.runtime.served_model import ServedModel

_EFFORTS: dict[str, Reasoning] = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}


class TextPart(Strict):
    type: Literal["text"]
    text: str


Content = str | list[TextPart]


class PlainMessage(Strict):
    role: Literal["system", "developer", "user"]
    content: Content


class CalledFunction(Strict):
    name: str
    arguments: str


class RequestToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Content = ""
    tool_calls: list[RequestToolCall] = Field(default_factory=list)
    reasoning_content: str = ""
    # A reply that a client sends back as it came
    annotations: list[Any] = Field(default_factory=list, max_length=0)


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str = ""


RequestMessage = Annotated[PlainMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class RequestFunction(Strict):
    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    parameters: Schema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


class RequestTool(Strict):
    type: Literal["function"]
    function: RequestFunction


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    name: str = ""
    description: str = ""
    schema_: Schema = Field(alias="schema")
    strict: bool = True


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema stands with the type 'json_schema', and with no other")
        return self

    @property
    def grammar(self) -> str:
        """Return the grammar that the reply has to follow; empty if any text will do."""
        if self.type == "text":
            return ""
        schema = self.json_schema.schema_ if self.json_schema else {"type": "object"}
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), {"whitespace_pattern": WHITESPACE}))


class TemplateArguments(Strict):
    """Field of `chat_template_kwargs` that switches thinking on or off, as vLLM and llama.cpp name it."""

    enable_thinking: bool | None = None


class ChatRequest(requests.Sampled):
    """Body of a request to /v1/chat/completions."""

    messages: list[RequestMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] = False
    top_logprobs: int = Field(0, ge=0, le=0)
    response_format: ResponseFormat = ResponseFormat()
    tools: list[RequestTool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] = Field(default_factory=list)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: TemplateArguments = TemplateArguments()

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.must_call and self.response_format.type != "text":
            raise ValueError("response_format and a tool_choice that asks for a call exclude each other")
        if self.must_call and not self.callable_tools:
            raise ValueError("tool_choice asks for a tool that is not among tools")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings, with the end of a tool call if only one call may be made."""
        alone = self.parallel_tool_calls is False and self.callable_tools
        return (*super().stops, CALL_CLOSES) if alone else super().stops

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in ("none", "auto")

    @property
    def has_form(self) -> bool:
        """Return whether the whole reply has to be JSON or a call, without a thought."""
        return self.must_call or self.response_format.type != "text"

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        if self.tool_choice == "none":
            return []
        named = self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None
        chosen = [tool for tool in self.tools if named in (None, tool.function.name)]
        return [tool.model_dump(exclude={"function": {"strict"}}) for tool in chosen]

    @property
    def reasoning(self) -> Reasoning:
        """Return how much the model shall think; empty if the request leaves it open."""
        if (switch := self.chat_template_kwargs.enable_thinking) is not None:
            return "on" if switch else "off"
        return _EFFORTS.get(self.reasoning_effort or "", "")

    def grammar(self, served: ServedModel) -> str:
        """Return the grammar that a reply of this model has to follow; empty if any text will do."""
        mark = served.local.grammars.mark if served.is_local and served.local.grammars else json.dumps
        if not self.has_form and self.callable_tools and any(tool.function.strict for tool in self.tools):
            return optional(self.callable_tools, mark)
        if not self.must_call:
            return self.response_format.grammar
        # Small models that may call again do so for ever: several only where they are params for.
        several = self.parallel_tool_calls is True and self.tool_choice == "required"
        return forced(self.callable_tools, mark, several=several)


def reply_request(params: ChatRequest, service: ChatService) -> requests.ReplyRequest:
    """Build the ReplyRequest of a chat completion: its prompt, its settings and the question to keep."""
    messages = [_prompt_message(message) for message in params.messages]
    tools = params.callable_tools

    def prompt(served: ServedModel) -> Prompt:
        if not served.prompts.takes_tools and (tools or any(message.calls for message in messages)):
            why = "was not made to call tools in a way that is understood here. Qwen2.5 and Qwen3 models are."
            raise ApiError(400, f"{served.name} {why}", "tools")
        reasoning = params.reasoning or service.sampling_of(served.name).reasoning
        reasoning = "off" if params.has_form else reasoning
        return served.prompts.whole(messages, served.end_ids, tools, reasoning)

    def settings(served: ServedModel, prompt: Prompt) -> GenerationSettings:
        usual = service.sampling_of(served.name)
        room = served.prompts.context_length - len(prompt.ids)
        chosen = params.settings(usual, room, params.grammar(served))
        return chosen.model_copy(update={"reasoning": params.reasoning or usual.reasoning})

    asked = [message.text for message in messages if message.role == "user"] or [messages[-1].text]
    return requests.ReplyRequest(params.model, prompt, settings, asked[-1])


def _prompt_message(message: PlainMessage | AssistantMessage | ToolMessage) -> Message:
    content = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    if not isinstance(message, AssistantMessage):
        return Message(role, text)
    text = join_reasoning(message.reasoning_content, text)
    return Message(role, text, calls=tuple(_call(call) for call in message.tool_calls))


def _call(call: RequestToolCall) -> dict[str, Any]:
    try:
        arguments = parse_json(call.function.arguments.encode() or b"{}")
    except InvalidJson as error:
        why = f"The arguments of an earlier call cannot be used. {error}"
        raise ApiError(400, why, "messages") from error
    return {"name": call.function.name, "arguments": arguments}


async def chat(request: Request, serving: requests.Serving) -> Response:
    params = await requests.fields(request, ChatRequest)
    running = await serving.begin(request, reply_request(params, serving.service))
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time())}
    if params.stream:
        return await requests.event_stream(_events(params, running, head))
    message, finish = whole(params, await running.last())
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    body = head | {"object": "chat.completion", "model": running.model, "choices": [choice]}
    return JSONResponse(body | {"usage": running.usage()})


def whole(params: ChatRequest, frame: Frame) -> tuple[dict[str, Any], str]:
    """Return the message of a finished reply, and its finish reason."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    calls: list[dict[str, Any]] = []
    deltas = Deltas(params)
    for delta in deltas.of(frame):
        message["content"] += delta.get("content", "")
        if "reasoning_content" in delta:
            message["reasoning_content"] = delta["reasoning_content"]
        for call in delta.get("tool_calls", []):
            del call["index"]
            calls.append(call)
    if calls:
        message |= {"content": message["content"].strip() or None, "tool_calls": calls}
    return message, deltas.finish(frame)


class Deltas:
    """Computes the deltas of one streamed reply, frame by frame."""

    def __init__(self, params: ChatRequest) -> None:
        self._thought, self._growing = HoldBack((CLOSES,)), HoldBack(params.stops)
        names = [tool["function"]["name"] for tool in params.callable_tools]
        self._reader = CallReader(names) if names else None
        self._text = ""

    def of(self, frame: Frame) -> list[dict[str, Any]]:
        """Return the new deltas of a frame."""
        done = frame.phase == "done"
        if not done and OPENS.startswith(frame.text.lstrip()):
            return []  # it may yet become a thought
        parts = split_reasoning(frame.text)
        thought = self._thought.more(parts.thought, done=done or not parts.thinking)
        found: list[dict[str, Any]] = [{"reasoning_content": thought}] if thought else []
        new = self._growing.more(parts.answer, done=done)
        if self._reader is None:
            return [*found, {"content": new}] if new else found
        for delta in self._reader.read(self._growing.sent, done=done):
            # Line breaks around calls belong to the form; those within a text come with what follows them.
            self._text += delta.get("content", "")
            if "content" not in delta:
                found.append(delta)
            elif self._text.strip():
                found.append({"content": self._text})
                self._text = ""
        return found

    def finish(self, frame: Frame) -> str:
        finish = requests.FINISH.get(frame.finish or "", "stop")
        return "tool_calls" if finish == "stop" and self._reader and self._reader.calls else finish


def _events(
    params: ChatRequest, running: requests.RunningReply, head: dict[str, Any]
) -> AsyncGenerator[str, None]:
    deltas = Deltas(params)

    def choices(frame: Frame, first: bool) -> Iterator[dict[str, Any]]:
        found = [{"role": "assistant", "content": "", "refusal": None}] if first else []
        for delta in [*found, *deltas.of(frame)]:
            yield {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        if frame.phase == "done":
            yield {"index": 0, "delta": {}, "logprobs": None, "finish_reason": deltas.finish(frame)}

    head = head | {"object": "chat.completion.chunk"}
    return requests.completion_events(running, head, params.stream_options.include_usage, choices)


# Text completions.
USUAL_TOKENS = 16
"""Most tokens of an answer if the client gives no number, as OpenAI's protocol has it."""
_MIDDLES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
)
"""Control tokens before the text, before what follows the gap, and before what fills it."""
PromptIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class CompletionRequest(requests.Sampled):
    """Body of a request to /v1/completions."""

    prompt: str | PromptIds
    suffix: str = ""
    echo: Literal[False] = False
    logprobs: None = None
    best_of: int | None = Field(None, ge=1, le=1)


async def complete(request: Request, serving: requests.Serving) -> Response:
    params = await requests.fields(request, CompletionRequest)
    running = await serving.begin(request, _text_request(params, serving.service))
    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    if params.stream:
        return await requests.event_stream(_text_events(params, running, head))
    choice = _choice((last := await running.last()).text, last)
    return JSONResponse(head | {"model": running.model, "choices": [choice], "usage": running.usage()})


def _choice(text: str, frame: Frame) -> dict[str, Any]:
    finish = requests.FINISH.get(frame.finish or "", "stop") if frame.phase == "done" else None
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


def _text_events(
    params: CompletionRequest, running: requests.RunningReply, head: dict[str, Any]
) -> AsyncGenerator[str, None]:
    growing = HoldBack(params.stops)

    def choices(frame: Frame, first: bool) -> Iterator[dict[str, Any]]:
        done = frame.phase == "done"
        text = growing.more(frame.text, done=done)
        if text or done or first:
            yield _choice(text, frame)

    return requests.completion_events(running, head, params.stream_options.include_usage, choices)


def _text_request(params: CompletionRequest, service: ChatService) -> requests.ReplyRequest:
    text = params.prompt

    def prompt(served: ServedModel) -> Prompt:
        ids = _ids(served, text, params.suffix)
        if not ids:
            raise ApiError(400, "prompt is empty.", "prompt")
        served.prompts.require_room(ids)
        return Prompt(ids)

    def settings(served: ServedModel, prompt: Prompt) -> GenerationSettings:
        room = served.prompts.context_length - len(prompt.ids)
        most = params.model_copy(update={"max_tokens": params.max_tokens or USUAL_TOKENS})
        return most.settings(service.sampling_of(served.name), room)

    return requests.ReplyRequest(params.model, prompt, settings, text if isinstance(text, str) else "")


def _ids(served: ServedModel, text: str | list[int], suffix: str) -> list[int]:
    """Tokenise a prompt. Control tokens written in it count as such: editors write them."""
    if not served.prompts.knows_tokens:
        why = f"{served.name} is computed by another server, which takes messages: use /v1/chat/completions."
        raise ApiError(400, why, "model")
    tokenizer = served.prompts.tokenizer
    if not isinstance(text, str):
        if suffix:
            raise ApiError(400, "suffix needs a prompt that is a text.", "suffix")
        known = len(tokenizer)
        if beyond := [token for token in text if token >= known]:
            why = f"prompt has token {beyond[0]}; {served.name} has 0 to {known - 1}."
            raise ApiError(400, why, "prompt")
        return text
    served.prompts.require_short(text, suffix)
    if suffix:
        vocabulary = tokenizer.get_vocab().keys()
        if (marks := next((marks for marks in _MIDDLES if vocabulary >= set(marks)), None)) is None:
            raise ApiError(400, f"{served.name} was not made to fill gaps: it takes no suffix.", "suffix")
        before, behind, middle = marks
        text = f"{before}{text}{behind}{suffix}{middle}"
    return list(tokenizer(text, verbose=False)["input_ids"])
