"""Serve /v1/completions: continue a text, as editors ask for it."""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api import requests
from hierchat.api.fields import MOST_REPLIES, Logprobs, Sampled
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


class CompletionRequest(Sampled):
    """Body of a request to /v1/completions."""

    prompt: str | PromptIds | list[str] | list[PromptIds]
    suffix: str = ""
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.best_of not in (None, self.n):
            raise ValueError("best_of other than n is not supported")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo and logprobs cannot be asked for together")
        if len(self.prompts) * self.n > MOST_REPLIES or not self.prompts:
            raise ValueError(f"one request may ask for 1 to {MOST_REPLIES} replies")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, one for each text to continue: strings or token ids."""
        match self.prompt:
            case [int(), *_]:
                return [self.prompt]  # type: ignore[list-item]
            case list():
                return list(self.prompt)  # type: ignore[arg-type]
        return [self.prompt]


async def complete(request: Request, serving: requests.Serving) -> Response:
    params = await requests.fields(request, CompletionRequest)
    asked = [_reply_request(params, one, serving.service) for one in params.prompts]
    running = await serving.begin(request, asked, params.n)
    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    if params.stream:
        return await requests.event_stream(_events(params, running, head))
    async with aclosing(running.frames()) as frames:
        last = {number: frame async for number, frame in frames}
    choices = []
    for number, frame in sorted(last.items()):
        reply = running.replies[number].reply
        assert reply is not None
        logprobs = None if params.logprobs is None else Logprobs(reply).legacy(frame.text)
        text = _echo(params, running, number) + frame.text
        choices.append(_choice(number, text, requests.FINISH.get(frame.finish or "", "stop"), logprobs))
    return JSONResponse(head | {"model": running.model, "choices": choices, "usage": running.usage()})


def _choice(number: int, text: str, finish: str | None, logprobs: Any = None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _echo(params: CompletionRequest, running: requests.ReplyStreams, number: int) -> str:
    return running.replies[number].request.question if params.echo else ""


def _events(
    params: CompletionRequest, running: requests.ReplyStreams, head: dict[str, Any]
) -> AsyncGenerator[str, None]:
    growing = [HoldBack(params.stops) for _ in running.replies]
    known: dict[int, Logprobs] = {}

    def choices(number: int, frame: Frame, first: bool) -> Iterator[dict[str, Any]]:
        reply, done = running.replies[number].reply, frame.phase == "done"
        text = growing[number].more(frame.text, done=done)
        logprobs = None
        if params.logprobs is not None and text and reply is not None:
            logprobs = known.setdefault(number, Logprobs(reply)).legacy(growing[number].sent)
        if first:
            text = _echo(params, running, number) + text
        if text or done or first:
            finish = requests.FINISH.get(frame.finish or "", "stop") if done else None
            yield _choice(number, text, finish, logprobs)

    return requests.completion_events(running, head, params.stream_options.include_usage, choices)


def _reply_request(
    params: CompletionRequest, text: str | list[int], service: ChatService
) -> requests.ReplyRequest:
    def prompt(served: ServedModel) -> Prompt:
        ids = _ids(served, text, params.suffix)
        if not ids:
            raise ApiError(400, "prompt is empty.", "prompt")
        served.prompts.require_room(ids)
        return Prompt(ids)

    def settings(served: ServedModel, prompt: Prompt) -> GenerationSettings:
        room = served.prompts.context_length - len(prompt.ids)
        most = params.model_copy(update={"max_tokens": params.max_tokens or USUAL_TOKENS})
        return most.settings(service.sampling_of(served.name), room, logprobs=params.logprobs)

    return requests.ReplyRequest(params.model, prompt, settings, text if isinstance(text, str) else "")


def _ids(served: ServedModel, text: str | list[int], suffix: str) -> list[int]:
    """Tokenise a prompt. Control tokens written in it count as such: editors write them."""
    requests.require_tokens(served)
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
