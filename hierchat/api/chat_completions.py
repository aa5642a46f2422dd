"""Serve /v1/chat/completions, and split replies into deltas, on which /v1/messages rests."""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api import requests
from hierchat.api.chat_request import ChatRequest, reply_request
from hierchat.chat.frames import Frame
from hierchat.chat.tool_calls import CallReader, HoldBack
from hierchat.reasoning import CLOSES, OPENS, split_reasoning


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
            number = call.pop("index")
            if number == len(calls):
                calls.append(call)
            else:
                calls[number]["function"]["arguments"] += call["function"]["arguments"]
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
