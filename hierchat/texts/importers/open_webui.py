"""Read Open WebUI's export: the `history` of a `chat`, trees by `parentId`, or older forms; without calls of tools."""

import re
from dataclasses import replace
from typing import Any

from hierchat.store import Chat, ChatMessage
from hierchat.texts.importers.tree import array, chat, label, message_of, name, record, seconds, text

_CALL = re.compile(r'<details type="tool_calls"[^>]*>[^<]*(?:<(?!/?details)[^<]*)*</details>\n?')


def recognises(value: Any) -> bool:
    inside = record(record(value).get("chat")) or record(value)
    return "messages" in record(inside.get("history")) or ("chat" in record(value) and "messages" in inside)


def read(value: dict[str, Any]) -> Chat:
    """Decode a conversation. Raises BadChat."""
    inside = record(value.get("chat")) or value
    history = record(inside.get("history"))
    tree = record(history.get("messages"))
    nodes = [_node(name(key), record(message)) for key, message in tree.items()] or _in_a_row(inside)
    made = chat(
        source="open-webui:" + name(value.get("id")),
        title=text(value.get("title")) or text(inside.get("title")),
        created_at=seconds(value.get("created_at")) or seconds(inside.get("timestamp")),
        updated_at=seconds(value.get("updated_at")),
        found=nodes,
        current=name(history.get("currentId")),
    )
    folder = name(value.get("folder_id"))
    called = f"Open WebUI folder {folder[:6]}" if folder else ""
    return replace(made, project=called, project_source=f"open-webui:{folder}")


def _in_a_row(inside: dict[str, Any]) -> list[ChatMessage]:
    nodes: list[ChatMessage] = []
    for message in map(record, array(inside.get("messages"))):
        above = {"parentId": nodes[-1].name if nodes else None}
        nodes.append(_node(name(message.get("id")) or str(len(nodes)), message | above))
    return nodes


def _node(key: str, message: dict[str, Any]) -> ChatMessage:
    parent, text = name(message.get("parentId")) or None, _said(message.get("content"))
    created_at = seconds(message.get("timestamp"))
    return message_of(key, parent, message.get("role"), text, label(message.get("model")), created_at)


def _said(content: Any) -> str:
    if isinstance(content, list):
        content = "\n\n".join(filter(None, (text(record(part).get("text")) for part in content)))
    return _CALL.sub("", text(content))
