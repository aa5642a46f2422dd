"""Answer in place of a model: always with one reply, at an even pace, a few characters a step."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from hierchat.engine.engine import TARGET, GenerationRequest, Step
from hierchat.models.progress import Report
from hierchat.runtime.prompt import PromptBuilder
from hierchat.runtime.served_model import ServedModel
from hierchat.store import LOCAL_USER, Store
from hierchat.store.records import NewMessage, NewTurn, SourceCount, TurnFigures

MODEL = "scripted"
WINDOW = 1_000_000
STEP_SECONDS = 0.04
STEP_CHARACTERS = 12


class Characters:
    """Tokenize texts into characters; none of them is a mark."""

    chat_template = ""
    added_tokens_decoder: Mapping[int, Any] = {}

    def get_vocab(self) -> dict[str, int]:
        """Return a vocabulary with no more than what a chat's marks are looked up in."""
        return {}

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Return the text of tokens."""
        return "".join(map(chr, tokens))

    def apply_chat_template(self, chat: Sequence[dict[str, str]], *, tokenize: bool = True, **_: Any) -> Any:
        """Join messages, one below the other."""
        text = "\n".join(f"{message['role']}: {message['content']}" for message in chat)
        return self(text) if tokenize else text


class ScriptedEngine:
    """Stand in for a remote engine that drafts nothing and measures nothing."""

    context_length = WINDOW
    exact: bool | None = None
    backend = MODEL
    places = 1

    def __init__(self, reply: str) -> None:
        self._tokens = tuple(map(ord, reply))

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        """Yield the reply, whatever was asked."""
        read = len(request.prompt_ids) - request.begun
        yield Step(prompt_read=read, prompt_tokens=read)
        for at in range(request.begun, len(self._tokens), STEP_CHARACTERS):
            began = time.perf_counter()
            stopped = request.stop.wait(STEP_SECONDS)
            tokens = self._tokens[at : at + STEP_CHARACTERS]
            ended = at + STEP_CHARACTERS >= len(self._tokens)
            yield Step(
                tokens,
                (TARGET,) * len(tokens),
                width=1,
                forward_ms=(time.perf_counter() - began) * 1e3,
                finish="stopped" if stopped else "end" if ended else None,
            )
            if stopped:
                return


def loader(reply: str) -> Any:
    """Make a loader for a ModelSlot that gives a ScriptedEngine with this reply."""

    def load(name: str, report: Report) -> ServedModel:
        return ServedModel(name, MODEL, ScriptedEngine(reply), PromptBuilder(Characters(), WINDOW))

    return load


# Chats that nobody has had, as long as real ones: in the store, and as ChatGPT's conversations.json.


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
    """Return a reply of some hundred characters; two in a row differ in what they hold."""
    return f"Reply {number}.\n\n{PARAGRAPH}\n\n{PARTS[number % len(PARTS)]}\n\n{PARAGRAPH}"


def add_chat(store: Store, user: int, title: str, messages: int) -> int:
    """Store a chat of so many messages whose replies were measured; return its id."""
    chat = store.chats.create(user, title)
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
        question = store.messages.add(user, chat, NewMessage(parent, f"Question {number} of “{title}”?"))
        parent = store.replies.begin(user, chat, question, NewTurn("scripted", "scripted", {}, 0, True))
        text = reply(number)
        tokens = list(range(210))
        store.replies.append(parent, text, tokens, ["context"] * 80 + ["history"] * 30 + ["target"] * 100)
        store.replies.finish(parent, text, "complete", figures)
    return chat


def add_chats(store: Store, count: int) -> None:
    """Store `count` chats of two messages."""
    user = store.users.ensure(LOCAL_USER)
    for number in range(count):
        chat = store.chats.create(user, f"Chat {number} about the reversing of strings")
        question = store.messages.add(user, chat, NewMessage(None, f"Question {number}?"))
        store.messages.add(user, chat, NewMessage(question, reply(number), "assistant"))


def write_conversations(path: Path, size: int) -> tuple[int, int]:
    """Write a conversations.json of at least `size` bytes; return how many chats and messages it holds."""
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
