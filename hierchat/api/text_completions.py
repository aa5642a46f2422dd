"""Serve /v1/completions: continue a text, as editors ask for it."""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api import requests
from hierchat.api.keys import ApiError
from hierchat.chat.frames import Frame
from hierchat.chat.service import ChatService
from hierchat.chat.tool_calls import HoldBack
from hierchat.config import GenerationSettings
from hierchat.runtime.prompt import Prompt
from hierchat.runtime.served_model import ServedModel

USUAL_TOKENS = 16
"""What OpenAI's protocol gives to who asks for no number."""
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
    running = await serving.begin(request, _reply_request(params, serving.service))
    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    if params.stream:
        return await requests.event_stream(_events(params, running, head))
    choice = _choice((last := await running.last()).text, last)
    return JSONResponse(head | {"model": running.model, "choices": [choice], "usage": running.usage()})


def _choice(text: str, frame: Frame) -> dict[str, Any]:
    finish = requests.FINISH.get(frame.finish or "", "stop") if frame.phase == "done" else None
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


def _events(
    params: CompletionRequest, running: requests.RunningReply, head: dict[str, Any]
) -> AsyncGenerator[str, None]:
    growing = HoldBack(params.stops)

    def choices(frame: Frame, first: bool) -> Iterator[dict[str, Any]]:
        done = frame.phase == "done"
        text = growing.more(frame.text, done=done)
        if text or done or first:
            yield _choice(text, frame)

    return requests.completion_events(running, head, params.stream_options.include_usage, choices)


def _reply_request(params: CompletionRequest, service: ChatService) -> requests.ReplyRequest:
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
