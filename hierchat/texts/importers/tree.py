"""Turn the messages of another program's conversation, a tree, into the order in which the store takes them."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hierchat.store import Chat, ChatMessage
from hierchat.store.repository import storable


class TransferError(Exception):
    """Raised if nothing can be imported or exported; the text says what to do."""


class BadChat(Exception):
    """Raised if one conversation cannot be read; the text is the reason, as the end of a sentence."""


# Values out of files that anybody may have written: of the expected type, or a default.

_LATEST = 4e9
"""Seconds: the year 2096. A time above is in milliseconds."""
_LONGEST_NAME = 200


def text(value: Any) -> str:
    """Return a value as a string that can be stored; empty if it is no string."""
    return storable(value).replace("\0", "") if isinstance(value, str) else ""


def label(value: Any) -> str:
    """Return a value as a name of one line, to be shown."""
    return " ".join(text(value)[:_LONGEST_NAME].split())


def record(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def array(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def name(value: Any) -> str:
    """Return an id for a value: short, and the same for the same value; empty if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:x}"  # hexadecimal has no limit of digits
    found = text(value)
    return found if len(found) <= _LONGEST_NAME else digest([found])


def seconds(value: Any) -> float | None:
    """Return a number of seconds or milliseconds as Unix time; None if it is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST * 1e3:
        return None
    return float(value) if value < _LATEST else value / 1e3


def digest(parts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "replace")
        found.update(len(raw).to_bytes(8, "little") + raw)
    return found.hexdigest()


def message_of(
    name: str, parent: str | None, role: Any, text: str, model: str, created_at: float | None = None
) -> ChatMessage:
    """Make a message of another program's. One that is of neither user nor model is empty, so that it is left out."""
    if role not in ("user", "assistant"):
        return ChatMessage(name, parent, "user", "", created_at or 0.0)
    writer = {"model": model} if model and role == "assistant" else None
    return ChatMessage(name, parent, role, text, created_at or 0.0, written_by=writer)


def chat(
    source: str,
    title: str,
    created_at: float | None,
    updated_at: float | None,
    found: Sequence[ChatMessage],
    current: str | None,
) -> Chat:
    """Build a Chat from a source's messages. `source`: program:id, or a hash of its texts; time 0.0 is unknown.
    Messages without a known parent begin the conversation; empty ones are left out."""
    messages, at = _ordered(found, created_at)
    if not messages:
        raise BadChat("it holds no text")
    times = [message.created_at for message in messages]
    if source.endswith(":"):
        source += digest(part for one in messages for part in (one.role, one.text))
    return Chat(
        source=source,
        title=title,
        created_at=min(times) if created_at is None else created_at,
        updated_at=max(times) if updated_at is None else updated_at,
        messages=messages,
        current=at.get(current or "") or messages[-1].name,
    )


def _ordered(
    found: Sequence[ChatMessage], created_at: float | None
) -> tuple[list[ChatMessage], dict[str, str | None]]:
    """Return the visible messages, parents first; and for every message the visible one at it or above."""
    known = {message.name for message in found}
    if len(known) < len(found):
        raise BadChat("two of its messages have the same id")
    below: dict[str | None, list[ChatMessage]] = defaultdict(list)
    for message in sorted(found, key=lambda one: one.created_at):  # those without a time first, as they stood
        below[message.parent if message.parent in known else None].append(message)
    messages: list[ChatMessage] = []
    visible: dict[str, str | None] = {}
    began = created_at or next((one.created_at for one in found if one.created_at), time.time())
    waiting: list[tuple[ChatMessage, str | None, float]] = [
        (one, None, began) for one in reversed(below[None])
    ]
    while waiting:
        message, above, before = waiting.pop()
        at = message.created_at or before
        visible[message.name] = above
        if message.text.strip() or message.attachments or message.call:
            visible[message.name] = message.name
            messages.append(replace(message, parent=above, created_at=at))
        waiting += [(one, visible[message.name], at) for one in reversed(below[message.name])]
    if len(visible) < len(found):
        raise BadChat("its messages answer each other in a circle")
    return messages, visible
