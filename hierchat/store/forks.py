"""Conversations that go on from a message of another one."""

from __future__ import annotations

import time
from itertools import count

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.messages import PATH
from hierchat.store.ownership import owned_conversation, owned_message
from hierchat.store.presets import copy_settings
from hierchat.store.text import NUMBER


class Forks(Connected):
    """The part of Store that copies conversations."""

    def fork_conversation(self, user_id: int, message_id: int) -> int:
        """A new conversation that holds copies of the messages from the root to this one; its id. Raises NotFound.

        It keeps the settings of the other one, and copied replies keep who wrote them, their figures and tokens. A
        copy neither drafts nor counts while its original is there.
        """
        with self._write() as db:
            source = owned_message(db, user_id, message_id)["conversation_id"]
            title = _another_title(db, user_id, owned_conversation(db, user_id, source)["title"])
            now = time.time()
            fork: int = db.execute(
                "INSERT INTO conversations (user_id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
                [user_id, title, now, now],
            ).lastrowid
            tags = (
                "INSERT INTO tags (conversation_id, name) SELECT ?, name FROM tags WHERE conversation_id = ?"
            )
            db.execute(tags, [fork, source])
            copy_settings(db, source, fork)
            parent = None
            for (id,) in db.execute(f"SELECT id FROM ({PATH})", [message_id]).fetchall():
                parent = _copy(db, id, fork, parent)
            db.execute("UPDATE conversations SET current_leaf_id = ? WHERE id = ?", [parent, fork])
            return fork


def _another_title(db: Database, user_id: int, title: str) -> str:
    """The title with the next number behind it: two of the same name could not be told apart in the list."""
    if not title:
        return ""
    base = NUMBER.sub("", title)
    rows = db.execute("SELECT title FROM conversations WHERE user_id = ? AND title <> ''", [user_id])
    taken = {title for (title,) in rows}
    return next(name for number in count(2) if (name := f"{base} ({number})") not in taken)


def _copy(db: Database, message_id: int, conversation_id: int, parent_id: int | None) -> int:
    copy: int = db.execute(
        "INSERT INTO messages (conversation_id, parent_id, role, text, state, created_at, edited, copy_of)"
        " SELECT ?, ?, role, text, replace(state, 'writing', 'interrupted'), created_at, edited, ifnull(copy_of, id)"
        " FROM messages WHERE id = ?",
        [conversation_id, parent_id, message_id],
    ).lastrowid
    for table in ("turns", "token_log", "spans", "attachments", "imported_messages"):
        columns = ", ".join(name for name in db.table(table).columns_dict if name not in ("id", "message_id"))
        db.execute(
            f"INSERT INTO {table} (message_id, {columns}) SELECT ?, {columns} FROM {table} WHERE message_id = ?",
            [copy, message_id],
        )
    return copy
