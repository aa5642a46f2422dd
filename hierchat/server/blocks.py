"""A reply as a row of blocks, each a thought, a text or a call: how OpenAI's responses and Anthropic's messages see
it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from hierchat.server.chat import Deltas, whole
from hierchat.server.conversation import ChatRequest
from hierchat.server.errors import Refused
from hierchat.server.running import Running


@dataclass(slots=True)
class Block:
    """`text`: what it says or thinks, or the JSON of a call's arguments, as far as it is known. `id`, `name`: of a call
    alone."""

    number: int
    text: str = ""
    id: str = ""
    name: str = ""
    thought: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A block that begins, grows by `more`, or ends."""

    what: Literal["begins", "grows", "ends"]
    block: Block
    more: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply has come to its end. `finish`: why, as OpenAI's chat completions call it."""

    finish: str


async def changes(
    asked: ChatRequest, running: Running, *, thoughts: bool = False
) -> AsyncGenerator[Change | Ended | None, None]:
    """What happens in a reply that is streamed; first None, once it began. `thoughts`: also what was thought. Raises as
    Running.frames."""
    deltas, blocks, begun = Deltas(asked), _Blocks(thoughts), False
    async with aclosing(running.frames()) as frames:
        async for number, frame in frames:
            if not begun:
                begun = True
                yield None
            for delta, _ in deltas.of(frame, running.asked[number]):
                for change in blocks.of(delta):
                    yield change
            if frame.phase == "done":
                for change in blocks.end():
                    yield change
                yield Ended(deltas.finish(frame))


async def all_blocks(
    asked: ChatRequest, running: Running, *, thoughts: bool = False
) -> tuple[list[Block], str]:
    """The blocks of a reply, and why it ended. `thoughts`: also what was thought."""
    async with aclosing(running.frames()) as frames:
        written = [frame async for _, frame in frames]
    if not written:
        raise Refused(400, "The request was given up.")
    message, finish = whole(asked, written[-1])
    thought = message.get("reasoning_content") if thoughts else None
    found = [Block(0, thought, thought=True)] if thought else []
    found += [Block(len(found), message["content"])] if message["content"] else []
    for call in message.get("tool_calls", []):
        function = call["function"]
        found.append(Block(len(found), function["arguments"], call["id"], function["name"]))
    return found, finish


class _Blocks:
    """One is open at a time."""

    def __init__(self, thoughts: bool) -> None:
        self._thoughts = thoughts
        self._open: Block | None = None
        self._count = 0

    def of(self, delta: dict[str, Any]) -> Iterator[Change]:
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

    def end(self) -> Iterator[Change]:
        if self._open is not None:
            yield Change("ends", self._open)
            self._open = None

    def _next(self, block: Block) -> Iterator[Change]:
        yield from self.end()
        self._open = block
        self._count += 1
        yield Change("begins", block)

    def _grow(self, more: str) -> Iterator[Change]:
        if more and self._open is not None:
            self._open.text += more
            yield Change("grows", self._open, more)
