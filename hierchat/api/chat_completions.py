"""Serve /v1/chat/completions, and split replies into blocks, on which /v1/messages rests."""

import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hierchat.api import requests
from hierchat.api.chat_request import ChatRequest, reply_request
from hierchat.chat.frames import Frame
from hierchat.chat.tool_calls import ArgumentsPiece, CallReader, CallStart, HoldBack, TextPiece
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
        thoughts: list[dict[str, Any]] = [{"reasoning_content": thought}] if thought else []
        new = self._growing.more(parts.answer, done=done)
        if self._reader is not None:
            pieces = self._reader.read(self._growing.sent, done=done)
            return thoughts + [delta for piece in pieces if (delta := self._piece(piece))]
        return [*thoughts, {"content": new}] if new else thoughts

    def finish(self, frame: Frame) -> str:
        finish = requests.FINISH.get(frame.finish or "", "stop")
        return "tool_calls" if finish == "stop" and self._reader and self._reader.calls else finish

    def _piece(self, piece: TextPiece | CallStart | ArgumentsPiece) -> dict[str, Any]:
        match piece:
            case TextPiece():
                # Line breaks around calls belong to the form; those within a text come with what follows them.
                self._text += piece.text
                if not self._text.strip():
                    return {}
                text, self._text = self._text, ""
                return {"content": text}
            case CallStart():
                function = {"name": piece.name, "arguments": ""}
                call = {"index": piece.number, "id": piece.id, "type": "function", "function": function}
            case ArgumentsPiece():
                call = {"index": piece.number, "function": {"arguments": piece.json}}
        return {"tool_calls": [call]}


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


# A reply as a row of blocks, each a thought, a text or a call: how Anthropic's messages see it.
@dataclass(slots=True)
class Block:
    """Part of a reply: text, thought or tool call. Only a call has `id` and `name`, and its `text` is the arguments
    so far."""

    number: int
    text: str = ""
    id: str = ""
    name: str = ""
    thought: bool = False


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """Says that a block of a reply begins, grows by `more`, or ends."""

    what: Literal["begins", "grows", "ends"]
    block: Block
    more: str = ""


async def changes(
    params: ChatRequest, running: requests.RunningReply, *, thoughts: bool
) -> AsyncGenerator[BlockEvent | str | None, None]:
    """Yield the block events of a streamed reply; first None, last its finish reason. `thoughts`: include thoughts.
    Raises as RunningReply.frames."""
    deltas, blocks, begun = Deltas(params), _Blocks(thoughts), False
    async with aclosing(running.frames()) as frames:
        async for frame in frames:
            if not begun:
                begun = True
                yield None
            for delta in deltas.of(frame):
                for change in blocks.of(delta):
                    yield change
            if frame.phase == "done":
                for change in blocks.end():
                    yield change
                yield deltas.finish(frame)


async def all_blocks(
    params: ChatRequest, running: requests.RunningReply, *, thoughts: bool
) -> tuple[list[Block], str]:
    """Return the blocks of a finished reply and its finish reason. `thoughts`: also blocks of thoughts."""
    message, finish = whole(params, await running.last())
    blocks = _Blocks(thoughts)
    events = [*blocks.of(message), *blocks.end()]
    return [event.block for event in events if event.what == "ends"], finish


class _Blocks:
    """Builds blocks from deltas; one block is open at a time."""

    def __init__(self, thoughts: bool) -> None:
        self._thoughts = thoughts
        self._open: Block | None = None
        self._count = 0

    def of(self, delta: dict[str, Any]) -> Iterator[BlockEvent]:
        if (thought := delta.get("reasoning_content")) and self._thoughts:
            if self._open is None:
                yield from self._next(Block(self._count, thought=True))
            yield from self._grow(thought)
        if text := delta.get("content"):
            if self._open is None or self._open.id or self._open.thought:
                yield from self._next(Block(self._count))
            yield from self._grow(text)
        for call in delta.get("tool_calls", []):
            if "id" in call:
                yield from self._next(Block(self._count, "", call["id"], call["function"]["name"]))
            yield from self._grow(call["function"]["arguments"])

    def end(self) -> Iterator[BlockEvent]:
        if self._open is not None:
            yield BlockEvent("ends", self._open)
            self._open = None

    def _next(self, block: Block) -> Iterator[BlockEvent]:
        yield from self.end()
        self._open = block
        self._count += 1
        yield BlockEvent("begins", block)

    def _grow(self, more: str) -> Iterator[BlockEvent]:
        if more and self._open is not None:
            self._open.text += more
            yield BlockEvent("grows", self._open, more)
