"""Stored chats to begin a browser test with."""

from __future__ import annotations

from hierchat.store import NewMessage, NewTurn, Store, TurnFigures
from tests.testing.fake_service import REPLY


def stored_chat(store: Store, title: str, turns: int, reply: str = REPLY) -> int:
    """A chat of `turns` questions and replies; its id."""
    user = store.users.ensure("local")
    chat = store.chats.create(user, title)
    parent = None
    for number in range(1, turns + 1):
        question = store.messages.add(user, chat, NewMessage(parent, f"{title}, question {number}"))
        parent = store.replies.begin(user, chat, question, NewTurn("fake", "fake", {}, 0, True))
        store.replies.append(parent, reply, [0], ["target"])
        store.replies.finish(parent, reply, "complete", TurnFigures(finish="end"))
    return chat
