"""The outputs of a response, and the events that tell of them: a block each, a thought, a message or a call."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from hierchat.server.blocks import Block, Change

_IDS = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_GROWS = {
    "reasoning": "reasoning_text",
    "message": "output_text",
    "function_call": "function_call_arguments",
}
"""What the events of their growth are called."""


class Items:
    """Of one response."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(12)

    def item(self, block: Block, status: str = "completed") -> dict[str, Any]:
        """One of its outputs; in progress, without its text."""
        kind = _kind(block)
        head: dict[str, Any] = {
            "id": f"{_IDS[kind]}_{self._mark}{block.number}",
            "type": kind,
            "status": status,
        }
        if block.id:
            return head | {"call_id": block.id, "name": block.name, "arguments": block.text}
        content = [] if status == "in_progress" else [_part(block, block.text)]
        more: dict[str, Any] = {"summary": []} if block.thought else {"role": "assistant"}
        return head | more | {"content": content}

    def told(self, change: Change) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events that tell of a change, without `response.` before their names, and their fields."""
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


def _kind(block: Block) -> str:
    return "function_call" if block.id else "reasoning" if block.thought else "message"


def _part(block: Block, text: str) -> dict[str, Any]:
    """The one piece of a thought or a message."""
    if block.thought:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
