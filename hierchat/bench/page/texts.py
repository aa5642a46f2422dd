"""Chats that nobody has had, as long as real ones: in the store, and as ChatGPT's conversations.json."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from hierchat.store import NewTurn, SourceCount, Store, TurnFigures

PARAGRAPH = (
    "It walks the string **backwards** with a slice, and *every* step makes a new one: strings are immutable, so the "
    "original stays as it was. See [the reference](https://docs.python.org/3/library/stdtypes.html) for `str`."
)
CODE = """```python
def reverse(text: str) -> str:
    \"\"\"The same characters, last one first.\"\"\"
    letters = list(text)
    for left in range(len(letters) // 2):
        right = len(letters) - 1 - left
        letters[left], letters[right] = letters[right], letters[left]
    return "".join(letters)
```"""
LIST = """1. `text[::-1]` makes a new string.
2. The old one is *untouched*.
   - Also where it is long,
   - or holds no letters at all."""
TABLE = """| way | lines | seconds |
|---|---|---|
| slice | 1 | 0.2 |
| loop | 6 | 4.1 |
| `reversed` | 1 | 0.9 |"""
FORMULA = "The time grows as $O(n)$, for\n\n$$\\sum_{i=1}^{n} 1 = n.$$"
PARTS = (PARAGRAPH, CODE, LIST, TABLE, FORMULA)
LONG_REPLY = "\n\n".join(
    ["## Reversing a string", *PARTS, "## Once more, in words", *[PARAGRAPH] * 6, CODE, LIST]
)
"""A reply of all that Markdown has."""
PER_CHAT = 20
"""Messages of an imported chat."""


def reply(number: int) -> str:
    """One of some hundred characters; two in a row differ in what they hold."""
    return f"Reply {number}.\n\n{PARAGRAPH}\n\n{PARTS[number % len(PARTS)]}\n\n{PARAGRAPH}"


def add_chat(store: Store, user: int, title: str, messages: int) -> int:
    """A chat of so many messages whose replies were measured; its id."""
    chat = store.create_conversation(user, title)
    parent = None
    figures = TurnFigures(
        prompt_tokens=1200,
        seconds=4.0,
        draft_ms=20.0,
        first_token_seconds=0.3,
        forwards=100,
        tokens_per_forward=2.1,
        proposed=300,
        accepted=110,
        sources={"context": SourceCount(200, 80), "history": SourceCount(100, 30)},
        baseline_tokens_per_second=26.0,
        baseline="measured",
        speedup=2.0,
        finish="end",
    )
    for number in range(messages // 2):
        question = store.add_message(user, chat, parent, "user", f"Question {number} of “{title}”?")
        parent = store.begin_reply(user, chat, question, NewTurn("scripted", "scripted", {}, 0, True))
        text = reply(number)
        tokens = list(range(210))
        store.append_reply(parent, text, tokens, ["context"] * 80 + ["history"] * 30 + ["target"] * 100)
        store.finish_reply(parent, text, "complete", figures)
    return chat


def write_conversations(path: Path, size: int) -> tuple[int, int]:
    """A conversations.json of at least `size` bytes; its chats, and their messages."""
    written = 0
    with path.open("w", encoding="utf-8") as out:
        out.write("[")
        for number in count():
            text = json.dumps(_conversation(number))
            out.write(f",{text}" if number else text)
            written += len(text) + 1
            if written >= size:
                break
        out.write("]")
    return number + 1, (number + 1) * PER_CHAT


def _conversation(number: int) -> dict[str, Any]:
    began = 1_700_000_000 + number * 3600
    nodes: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": ["m0"]}}
    for place in range(PER_CHAT):
        role = "assistant" if place % 2 else "user"
        text = (
            reply(number + place)
            if place % 2
            else f"Question {place} of chat {number}: what about {PARAGRAPH}"
        )
        nodes[f"m{place}"] = {
            "id": f"m{place}",
            "parent": f"m{place - 1}" if place else "root",
            "children": [f"m{place + 1}"] if place + 1 < PER_CHAT else [],
            "message": {
                "id": f"m{place}",
                "author": {"role": role, "name": None, "metadata": {}},
                "create_time": began + place,
                "content": {"content_type": "text", "parts": [text]},
                "status": "finished_successfully",
                "metadata": {"model_slug": "gpt-4o"} if place % 2 else {},
                "recipient": "all",
            },
        }
    return {
        "title": f"Imported chat {number}",
        "create_time": began,
        "update_time": began + PER_CHAT,
        "mapping": nodes,
        "current_node": f"m{PER_CHAT - 1}",
        "conversation_id": f"bench-{number}",
    }
