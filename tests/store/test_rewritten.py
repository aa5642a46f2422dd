"""Rewriting the file gives it a new schema cookie. Whoever has it open goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.store import NewMessage, Store


@pytest.mark.parametrize("act", ["discard", "add", "rename", "search", "delete", "hide"])
def test_the_first_use_after_another_connection_rewrote_the_file(
    store: Store, user: int, path: Path, act: str
) -> None:
    """A trigger opens its full-text table within the statement that fires it. If that finds another cookie, SQLite
    3.40 drops the schema under the outer statement: "no such table"."""
    empty, conversation = store.chats.create(user), store.chats.create(user, "malt")
    store.connection.rewrite()  # this connection begins without open full-text tables
    with Store.open(path) as other:
        other.connection.rewrite()
    if act == "discard":
        assert store.chats.discard(user, empty)
    elif act == "add":
        store.messages.add(user, conversation, NewMessage(None, "malt"))
    elif act == "rename":
        store.chats.rename(user, conversation, "yeast")
    elif act == "search":
        assert [found.id for found in store.chats.find(user, "malt")] == [conversation]
    elif act == "delete":
        with store.connection.write() as db:
            db.execute("DELETE FROM conversations")
    else:
        store.chats.hide(user, conversation)
