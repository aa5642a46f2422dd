"""Tags of conversations: short names by which the user groups them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.ownership import owned_conversation
from hierchat.store.text import storable

TAG_CHARACTERS = 40
MOST_TAGS = 32
"""Of one conversation."""


class Tags(Connected):
    """The part of Store that knows tags."""

    def tags(self, user_id: int) -> list[str]:
        """All tags of this user's conversations, in the order of the alphabet."""
        with self._read() as db:
            return user_tags(db, user_id)

    def set_tags(self, user_id: int, conversation_id: int, names: Iterable[str]) -> None:
        """Give a conversation these tags in place of those that it had. Raises NotFound.

        A tag that differs from one in use by its case alone is that one.
        """
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            db.execute("DELETE FROM tags WHERE conversation_id = ?", [conversation_id])
            add_tags(db, user_id, conversation_id, names)


def tag_name(text: str) -> str:
    """One line without quotes and leading #, which would be part of no search; empty where nothing is left."""
    line = " ".join(storable(text).replace('"', " ").replace("\0", " ").split()).lstrip("# ")
    return line[:TAG_CHARACTERS].strip()


def add_tags(db: Database, user_id: int, conversation_id: int, names: Iterable[str]) -> None:
    """As part of a transaction."""
    known = {name.casefold(): name for name in user_tags(db, user_id)}
    for name in filter(None, map(tag_name, list(names)[:MOST_TAGS])):
        db.execute(
            "INSERT OR IGNORE INTO tags (conversation_id, name) VALUES (?, ?)",
            [conversation_id, known.setdefault(name.casefold(), name)],
        )


def user_tags(db: Database, user_id: int) -> list[str]:
    rows = db.execute(
        "SELECT DISTINCT name FROM tags JOIN conversations ON id = conversation_id"
        " WHERE user_id = ? AND hidden_by IS NULL",
        [user_id],
    )
    return sorted((name for (name,) in rows), key=str.casefold)


def spelled(db: Database, user_id: int, names: Iterable[str]) -> str:
    """The same tags as they are stored, whatever their case, as JSON for a query."""
    known = {name.casefold(): name for name in user_tags(db, user_id)}
    return json.dumps([known.get(tag_name(name).casefold(), name) for name in names])


def tags_of(db: Database, conversation_id: int) -> tuple[str, ...]:
    """The tags of one conversation, in the order of the alphabet."""
    rows = db.execute("SELECT name FROM tags WHERE conversation_id = ?", [conversation_id])
    return tuple(sorted((name for (name,) in rows), key=str.casefold))
