"""Stored chats to begin a browser test with."""

from __future__ import annotations

from hierchat.store import NewTurn, Store, TurnFigures
from tests.testing.fake_service import REPLY


def stored_chat(store: Store, title: str, turns: int, reply: str = REPLY) -> int:
    """A chat of `turns` questions and replies; its id."""
    user = store.ensure_user("local")
    chat = store.create_conversation(user, title)
    parent = None
    for number in range(1, turns + 1):
        question = store.add_message(user, chat, parent, "user", f"{title}, question {number}")
        parent = store.begin_reply(user, chat, question, NewTurn("fake", "fake", {}, 0, True))
        store.append_reply(parent, reply, [0], ["target"])
        store.finish_reply(parent, reply, "complete", TurnFigures(finish="end"))
    return chat
