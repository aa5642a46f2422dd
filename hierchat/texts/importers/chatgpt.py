"""Read ChatGPT's conversations.json: trees of nodes (`mapping`, `current_node`), without system messages and tools."""

from dataclasses import replace
from typing import Any

from hierchat.store import Chat, ChatMessage
from hierchat.texts.importers.tree import array, chat, label, message_of, name, record, seconds, text

_SHOWN = ("text", "multimodal_text", "code")
_LISTENERS = (None, "", "all", "python")
"""Whom a shown message is for."""


def recognises(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def read(value: dict[str, Any]) -> Chat:
    """Decode a conversation. Its project has an id in the file, and no name. Raises BadChat."""
    project = name(value.get("gizmo_id") or value.get("conversation_template_id"))
    made = chat(
        source="chatgpt:" + name(value.get("conversation_id") or value.get("id")),
        title=text(value.get("title")),
        created_at=seconds(value.get("create_time")),
        updated_at=seconds(value.get("update_time")),
        found=[_node(name(key), record(node)) for key, node in value["mapping"].items()],
        current=name(value.get("current_node")),
    )
    called = f"ChatGPT project {project[4:10]}" if project.startswith("g-p-") else ""  # others are of GPTs
    return replace(made, project=called, project_source=f"chatgpt:{project}")


def _node(key: str, node: dict[str, Any]) -> ChatMessage:
    message = record(node.get("message"))
    content, metadata = record(message.get("content")), record(message.get("metadata"))
    role = record(message.get("author")).get("role")
    shown = (
        role in ("user", "assistant")
        and message.get("recipient") in _LISTENERS
        and content.get("content_type") in _SHOWN
        and not metadata.get("is_visually_hidden_from_conversation")
    )
    parent, model = name(node.get("parent")) or None, label(metadata.get("model_slug"))
    created_at = seconds(message.get("create_time"))
    return message_of(key, parent, role if shown else None, _said(content), model, created_at)


def _said(content: dict[str, Any]) -> str:
    if content.get("content_type") == "code":
        code, language = text(content.get("text")), text(content.get("language"))
        return f"```{'' if language == 'unknown' else language}\n{code}\n```" if code else ""
    return "\n\n".join(filter(None, map(_part, array(content.get("parts")))))


def _part(part: Any) -> str:
    """Return a part's text, or its kind in brackets, so that a message of a picture alone is still there."""
    if not isinstance(part, dict):
        return text(part)
    kind = text(part.get("content_type"))
    named = next((word for word in ("image", "audio", "video") if word in kind), "file")
    return text(part.get("text")) or (f"[{named}]" if kind else "")
