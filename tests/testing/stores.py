"""Databases and what stands in them: an empty one within milliseconds, a question with its reply in one line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from hierchat.store import Mark, Store
from hierchat.store.records import NewMessage, NewTurn, TurnFigures

TURN = NewTurn("m", "k", {}, 0, True)


@cache
def _empty() -> bytes:
    """Make a database's schema once in a process: that takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        Store.open(path).close()
        return path.read_bytes()


def new_store(path: Path, **how: Any) -> Store:
    """Open an empty database that is as `Store.open` would make it."""
    path.touch(0o600)
    path.write_bytes(_empty())
    return Store.open(path, **how)


def replied(
    store: Store,
    user: int,
    chat: int | None = None,
    text: str = "reply",
    *,
    asked: str = "question",
    parent: int | None = None,
    tokens: Sequence[int] = (1,),
    sources: Sequence[str] = (),
    turn: NewTurn = TURN,
    state: Literal["writing", "complete", "stopped"] = "complete",
    figures: TurnFigures | None = None,
) -> int:
    """Write a question and its reply, in a chat of their own where none is named; return the reply's id, which is the
    question's and one."""
    chat = store.chats.create(user) if chat is None else chat
    question = store.messages.add(user, chat, NewMessage(parent, asked))
    reply = store.replies.begin(user, chat, question, turn)
    store.replies.append(reply, text, tokens, sources or ["target"] * len(tokens))
    if state != "writing":
        store.replies.finish(reply, text, state, figures or TurnFigures())
    return reply


def chat_of(store: Store, user: int, message: int) -> int:
    """Return the chat of a message."""
    return store.messages.get(user, message).conversation_id


def drafting(store: Store, user: int, kind: Literal["written", "asked", "self"] = "written") -> list[int]:
    """Return the messages whose texts draft."""
    return [id for id, _ in store.history.texts(user, "k", kind, Mark())[0]]
