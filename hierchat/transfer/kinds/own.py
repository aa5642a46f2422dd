"""hierchat's own JSON: an array of conversations, each of which says in which version it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierchat.store import Attachment, Chat, ChatMessage
from hierchat.transfer.errors import BadChat
from hierchat.transfer.tree import Node, chat
from hierchat.transfer.values import array, label, labels, name, plain, record, seconds, text

NAME = "hierchat"
VERSION = 1
_ROLES = ("system", "user", "assistant")
_STATES = ("complete", "stopped", "interrupted")
_WRITTEN_BY = ("model", "model_key", "settings", "seed", "drafted")


def written(made: Chat) -> dict[str, Any]:
    """A conversation as JSON can hold it."""
    return {
        "hierchat": VERSION,
        "id": made.source,
        "title": made.title,
        "created_at": made.created_at,
        "updated_at": made.updated_at,
        **({"tags": list(made.tags)} if made.tags else {}),
        "current": made.current,
        "messages": [_message(message) for message in made.messages],
    }


def recognises(value: Any) -> bool:
    return isinstance(value, dict) and "hierchat" in value


def read(value: dict[str, Any]) -> Chat:
    """What `written` made. Raises BadChat."""
    if value["hierchat"] != VERSION:
        raise BadChat("a newer hierchat wrote it; update this one")
    return chat(
        source=name(value.get("id")) or "hierchat:",
        title=text(value.get("title")),
        created_at=seconds(value.get("created_at")),
        updated_at=seconds(value.get("updated_at")),
        nodes=[_node(record(message)) for message in array(value.get("messages"))],
        current=name(value.get("current")),
        tags=labels(value.get("tags")),
    )


def _message(message: ChatMessage) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": message.name,
        "parent": message.parent,
        "role": message.role,
        "text": message.text,
        "created_at": message.created_at,
        "state": message.state,
    }
    made |= {"edited": True} if message.edited else {}
    if message.written_by:
        made["written_by"] = dict(message.written_by)
    if message.attachments:
        made["attachments"] = [
            {"name": file.name, "size": file.size, "text": file.text} for file in message.attachments
        ]
    return made


def _node(message: dict[str, Any]) -> Node:
    role, state = message.get("role"), message.get("state")
    if role not in _ROLES or not name(message.get("id")):
        raise BadChat("one of its messages has no id or no known role")
    return Node(
        name=name(message["id"]),
        parent=name(message.get("parent")) or None,
        role=role,
        text=text(message.get("text")),
        created_at=seconds(message.get("created_at")),
        state=state if state in _STATES else "complete",
        written_by=_writer(record(message.get("written_by"))),
        attachments=[_file(record(file)) for file in array(message.get("attachments"))],
        edited=role == "assistant" and message.get("edited") is True,
    )


def _file(value: dict[str, Any]) -> Attachment:
    size, held = value.get("size"), text(value.get("text"))
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**53:
        size = len(held.encode())
    return Attachment(label(value.get("name")) or "File", size, held)


def _writer(value: dict[str, Any]) -> Mapping[str, Any] | None:
    if not (model := label(value.get("model"))):
        return None
    known = {key: value[key] for key in _WRITTEN_BY if key in value and plain(value[key])}
    return known | {"model": model}
