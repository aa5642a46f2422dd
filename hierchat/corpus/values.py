"""What of a JSON value is text: fields that hold text, and conversations in the forms that are about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TEXT = ("text", "content", "reply", "response", "output", "completion", "answer")
TALK = ("messages", "conversations", "conversation", "turns", "dialogue", "chat_messages")
MODEL = frozenset(("assistant", "gpt", "chatgpt", "model", "bot", "ai"))
"""Roles of a model: it is a model that the corpus drafts for."""
LEAST = 40
"""Characters of a string that counts as text though no name says so."""


def texts_of(value: Any) -> Iterator[str]:
    """All texts in a value. Of a conversation, the model's part; where nobody is the model, all of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from _listed(value)
    elif isinstance(value, dict):
        talks = [value[name] for name in TALK if isinstance(value.get(name), list)]
        fields = [value[name] for name in TEXT if isinstance(value.get(name), str)]
        if isinstance(mapping := value.get("mapping"), dict):  # ChatGPT's export
            nodes = [node.get("message") for node in mapping.values() if isinstance(node, dict)]
            yield from _said([node for node in nodes if isinstance(node, dict)])
        elif talks or fields:
            for talk in talks:
                yield from _listed(talk)
            yield from fields
        else:
            yield from _long(value)


def _listed(values: list[Any]) -> Iterator[str]:
    if any(isinstance(value, dict) and _role(value) for value in values):
        yield from _said([value for value in values if isinstance(value, dict)])
    else:
        for value in values:
            yield from texts_of(value)


def _said(messages: list[dict[str, Any]]) -> Iterator[str]:
    replies = [message for message in messages if _role(message) in MODEL]
    for message in replies or messages:
        content = message.get("content", message.get("value", message.get("text")))
        if isinstance(content, dict):
            content = content.get("parts")
        parts = content if isinstance(content, list) else [content]
        for part in parts:  # the others are images and calls of tools
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def _role(message: dict[str, Any]) -> str:
    author = message.get("author")
    role = message.get("role") or message.get("from") or message.get("sender")
    if role is None and isinstance(author, dict):
        role = author.get("role")
    return role.lower() if isinstance(role, str) else ""


def _long(value: Any) -> Iterator[str]:
    """Every string of some length, wherever it stands."""
    if isinstance(value, str):
        if len(value) >= LEAST:
            yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _long(inner) if not isinstance(inner, dict) else texts_of(inner)
