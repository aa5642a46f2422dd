"""Rewriting the file gives it a new schema cookie. Whoever has it open goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.store import Store


@pytest.mark.parametrize("act", ["discard", "add", "rename", "search", "delete", "hide"])
def test_the_first_use_after_another_connection_rewrote_the_file(
    store: Store, user: int, path: Path, act: str
) -> None:
    """A trigger opens its full-text table within the statement that fires it. If that finds another cookie, SQLite
    3.40 drops the schema under the outer statement: "no such table"."""
    empty, conversation = store.create_conversation(user), store.create_conversation(user, "malt")
    store.rewrite()  # this connection begins without open full-text tables
    with Store.open(path) as other:
        other.rewrite()
    if act == "discard":
        assert store.discard_conversation(user, empty)
    elif act == "add":
        store.add_message(user, conversation, None, "user", "malt")
    elif act == "rename":
        store.rename_conversation(user, conversation, "yeast")
    elif act == "search":
        assert [found.id for found in store.conversations(user, "malt")] == [conversation]
    elif act == "delete":
        with store._write() as db:
            db.execute("DELETE FROM conversations")
    else:
        store.hide_conversation(user, conversation)
