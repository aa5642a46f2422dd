"""Files as the programs write them, with what hierchat reads and some of what it does not."""

import json
from pathlib import Path
from typing import Any

from hierchat.store import Store
from hierchat.texts.importing import Import

BEGAN = 1_700_000_000.25
REPLY = "gpt-4o"


def saved(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def imported(store: Store, user: int, *paths: Path) -> Import:
    """An import that has ended."""
    importing = Import(store, user, paths)
    for _ in importing:
        assert min(1, importing.total) <= importing.done <= importing.total
    assert importing.done == importing.total
    return importing


def branches(store: Store, user: int, conversation: int) -> set[tuple[str, ...]]:
    """The texts from each root to each leaf."""
    chat = store.transfer.export_chat(user, conversation)
    known = {message.name: message for message in chat.messages}
    inside = {message.parent for message in chat.messages}
    found = set()
    for leaf in known.keys() - inside:
        texts, at = [], known.get(leaf)
        while at is not None:
            texts.append(at.text)
            at = known.get(at.parent or "")
        found.add(tuple(reversed(texts)))
    return found


def open_branch(store: Store, user: int, conversation: int) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in store.messages.path(user, conversation)]


def gpt_node(
    name: str, parent: str | None, role: str | None, parts: Any = None, **more: Any
) -> tuple[str, dict[str, Any]]:
    """A node of ChatGPT's mapping; without a role, one without a message."""
    if role is None:
        return name, {"id": name, "message": None, "parent": parent, "children": []}
    content = more.pop("content", {"content_type": "text", "parts": parts})
    message = {
        "id": name,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": BEGAN + 10,
        "content": content,
        "metadata": {"model_slug": REPLY} if role == "assistant" else {},
        "recipient": "all",
        "channel": None,
    }
    return name, {"id": name, "message": message | more, "parent": parent, "children": []}


def gpt_chat(*nodes: tuple[str, dict[str, Any]], current: str | None, **more: Any) -> dict[str, Any]:
    mapping = dict(nodes)
    for name, node in mapping.items():
        if node["parent"] in mapping:
            mapping[node["parent"]]["children"].append(name)
    return {
        "title": "Sums",
        "create_time": BEGAN,
        "update_time": BEGAN + 60,
        "mapping": mapping,
        "current_node": current,
        "plugin_ids": None,
        "conversation_id": "6cf1",
        "id": "6cf1",
    } | more


def gpt_sums(**more: Any) -> dict[str, Any]:
    """A question, its reply, one more question with two replies, the first of which is open."""
    return gpt_chat(
        gpt_node("root", None, None),
        gpt_node("system", "root", "system", [""]),
        gpt_node("q1", "system", "user", ["What is 1 + 1?"]),
        gpt_node("a1", "q1", "assistant", ["2"], create_time=BEGAN + 11),
        gpt_node("q2", "a1", "user", ["And 2 + 2?"], create_time=BEGAN + 12),
        gpt_node("a2", "q2", "assistant", ["4"], create_time=BEGAN + 13),
        gpt_node("a3", "q2", "assistant", ["Four."], create_time=BEGAN + 14),
        current="a2",
        **more,
    )


def webui_chat(**more: Any) -> dict[str, Any]:
    """Open WebUI's: a question with two replies, the second of which is open."""
    question = {
        "id": "q",
        "parentId": None,
        "childrenIds": ["a", "b"],
        "role": "user",
        "content": "Name a colour",
    }
    reply = {"parentId": "q", "childrenIds": [], "role": "assistant", "model": "qwen2.5"}
    at = int(BEGAN)
    messages = {
        "q": question | {"timestamp": at},
        "a": reply | {"id": "a", "content": "Red", "timestamp": at + 1},
        "b": reply | {"id": "b", "content": "Blue", "timestamp": at + 2},
    }
    chat = {
        "id": "",
        "title": "Colours",
        "history": {"messages": messages, "currentId": "b"},
        "messages": [messages["q"], messages["b"]],
        "tags": [],
        "timestamp": int(BEGAN * 1000),
    }
    return {
        "id": "8a-b",
        "title": "Colours",
        "chat": chat,
        "created_at": int(BEGAN),
        "updated_at": int(BEGAN) + 5,
    } | more


def studio_version(role: str, text: str, thought: str = "") -> dict[str, Any]:
    if role == "user":
        return {"type": "singleStep", "role": "user", "content": [{"type": "text", "text": text}]}
    steps = [
        {
            "type": "contentBlock",
            "content": [{"type": "text", "text": said}],
            "style": style,
            "genInfo": {"identifier": "qwen2.5-7b", "stats": {"stopReason": "eosFound"}},
        }
        for said, style in ((thought, {"type": "thinking"}), (text, {"type": "default"}))
        if said
    ]
    return {
        "type": "multiStep",
        "role": "assistant",
        "senderInfo": {"senderName": "qwen2.5-7b"},
        "steps": [*steps, {"type": "debugInfoBlock", "debugInfo": "Conversation naming technique: prompt"}],
    }


def studio_chat(**more: Any) -> dict[str, Any]:
    """LM Studio's: a question, two replies, the first of which is open and was answered."""
    messages = [
        {"versions": [studio_version("user", "Tell a joke")], "currentlySelected": 0},
        {
            "versions": [
                studio_version("assistant", "Knock knock", thought="a classic"),
                studio_version("assistant", "No"),
            ],
            "currentlySelected": 0,
        },
        {"versions": [studio_version("user", "Who is there?")], "currentlySelected": 0},
    ]
    return {
        "name": "Jokes",
        "createdAt": int(BEGAN * 1000),
        "systemPrompt": "",
        "messages": messages,
        "userLastMessagedAt": int(BEGAN * 1000) + 9_000,
    } | more


def own_chat(**more: Any) -> dict[str, Any]:
    """hierchat's own: a question and its reply."""
    writer = {"model": "m", "settings": {"temperature": 0.5}, "seed": 1}
    messages = [
        {"id": "1", "parent": None, "role": "user", "text": "q", "created_at": 2.5, "state": "complete"},
        {"id": "2", "parent": "1", "role": "assistant", "text": "a", "written_by": writer},
    ]
    times = {"created_at": 1.5, "updated_at": 3.5}
    return {
        "hierchat": 1,
        "id": "hierchat:1-2",
        "title": "t",
        "current": "2",
        **times,
        "messages": messages,
    } | more
