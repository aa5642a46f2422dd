"""Users and their conversations: create, list, search, rename, pin, archive."""

from __future__ import annotations

import json
import time
from typing import Any

from hierchat.store.connection import Connected
from hierchat.store.ownership import owned_conversation, require_user
from hierchat.store.records import Conversation
from hierchat.store.tags import spelled, tags_of
from hierchat.store.text import FOUND_BEGINS, FOUND_ENDS, match_expression, split_tags, storable

_COLUMNS = ("id", "title", "created_at", "updated_at", "pinned", "archived", "unread")
LOCAL_USER = "local"
"""Whose chats a page without a login shows."""
EMPTY = (
    "NOT EXISTS (SELECT 1 FROM messages WHERE conversation_id = conversations.id)"
    " AND NOT EXISTS (SELECT 1 FROM waiting WHERE conversation_id = conversations.id)"
)
"""Of a conversation: nothing was said there, and no question waits."""
_TAGS = "(SELECT json_group_array(name) FROM tags WHERE conversation_id = conversations.id) AS tags"
_TAGGED = """NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted
        WHERE NOT EXISTS (SELECT 1 FROM tags WHERE conversation_id = conversations.id AND name = wanted.value)
    )"""
_LIST = f"""
    SELECT id, title, created_at, updated_at, pinned, archived, unread, {_TAGS} FROM conversations
    WHERE user_id = :user AND archived = ifnull(:archived, archived) AND hidden_by IS NULL AND {_TAGGED}
    ORDER BY archived, pinned DESC, updated_at DESC, id DESC LIMIT :limit
"""
# FTS5 makes no snippet inside a GROUP BY: hence first the newest hit of each conversation, then its text.
# MATERIALIZED and the + keep SQLite from running the match again for every conversation.
_SEARCH = f"""
    WITH found AS MATERIALIZED (
        SELECT rowid AS message_id, 0 AS attachment_id FROM messages_fts WHERE messages_fts MATCH :match
        UNION ALL
        SELECT message_id, attachments.id
        FROM attachments_fts JOIN attachments ON attachments.id = attachments_fts.rowid
        WHERE attachments_fts MATCH :match
    ),
    hits AS MATERIALIZED (
        SELECT conversation_id AS id, max(messages.id) AS message_id, attachment_id
        FROM found
        JOIN messages ON messages.id = found.message_id
        JOIN conversations ON conversations.id = conversation_id
        WHERE user_id = :user AND hidden_by IS NULL
        GROUP BY conversation_id
    ),
    snippets AS MATERIALIZED (
        SELECT rowid AS message_id, snippet(messages_fts, 0, '{FOUND_BEGINS}', '{FOUND_ENDS}', '…', 12) AS snippet
        FROM messages_fts
        WHERE messages_fts MATCH :match AND +rowid IN (SELECT message_id FROM hits WHERE NOT attachment_id)
        UNION ALL
        SELECT message_id, snippet(attachments_fts, -1, '{FOUND_BEGINS}', '{FOUND_ENDS}', '…', 12)
        FROM attachments_fts JOIN hits ON hits.attachment_id = attachments_fts.rowid
        WHERE attachments_fts MATCH :match AND +attachments_fts.rowid IN (SELECT attachment_id FROM hits)
    )
    SELECT
        id, title, created_at, updated_at, pinned, archived, unread, {_TAGS}, ifnull(snippet, '') AS snippet,
        hits.message_id AS message_id
    FROM conversations LEFT JOIN hits USING (id) LEFT JOIN snippets USING (message_id)
    WHERE user_id = :user AND hidden_by IS NULL AND (
        hits.message_id IS NOT NULL OR id IN (SELECT rowid FROM titles_fts WHERE titles_fts MATCH :match)
    ) AND {_TAGGED}
    ORDER BY archived, pinned DESC, updated_at DESC, id DESC LIMIT :limit
"""


class Conversations(Connected):
    """The part of Store that knows users and conversations."""

    def ensure_user(self, name: str) -> int:
        """The id of the user of that name, who is created if new."""
        with self._write() as db:
            db.execute(
                "INSERT INTO users (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                [storable(name), time.time()],
            )
            return db.execute("SELECT id FROM users WHERE name = ?", [storable(name)]).fetchone()[0]

    def users(self) -> dict[str, int]:
        """The ids of all users, by name."""
        with self._read() as db:
            return dict(db.execute("SELECT name, id FROM users ORDER BY name").fetchall())

    def create_conversation(self, user_id: int, title: str = "") -> int:
        """The id of a new, empty conversation. An empty title is filled by the first user message.

        Raises StoreError where the user was forgotten.
        """
        now = time.time()
        with self._write() as db:
            require_user(db, user_id)
            return db.execute(
                "INSERT INTO conversations (user_id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
                [user_id, storable(title), now, now],
            ).lastrowid

    def conversations(
        self, user_id: int, query: str | None = None, limit: int = 200, *, archived: bool = False
    ) -> list[Conversation]:
        """This user's conversations, or the archived ones: pinned ones first, then the latest changed.

        With a query, all whose title, or one of whose messages, holds all its words, archived ones last; the
        last word may be the beginning of one; case, accents and punctuation do not count. A blank query is none; one
        without a letter or digit finds nothing. A reply is found once it is finished. `tag:name`, or `tag:"two words"`,
        asks for those with that tag.
        """
        words, tags = split_tags(query or "")
        with self._read() as db:
            parameters = {"user": user_id, "limit": limit, "tags": spelled(db, user_id, tags)}
            if not words.strip():
                which = {"archived": None if tags else archived}
                return [_conversation(row) for row in db.query(_LIST, parameters | which)]
            if not (match := match_expression(words)):
                return []
            return [_conversation(row) for row in db.query(_SEARCH, parameters | {"match": match})]

    def archived_conversations(self, user_id: int) -> int:
        """How many of this user's conversations are archived."""
        with self._read() as db:
            return db.execute(
                "SELECT count(*) FROM conversations WHERE user_id = ? AND archived AND hidden_by IS NULL",
                [user_id],
            ).fetchone()[0]

    def conversation(self, user_id: int, conversation_id: int) -> Conversation:
        """One conversation. Raises NotFound."""
        with self._read() as db:
            row = owned_conversation(db, user_id, conversation_id)
            tags = json.dumps(tags_of(db, conversation_id))
            return _conversation({name: row[name] for name in _COLUMNS} | {"tags": tags})

    def discard_conversation(self, user_id: int, conversation_id: int) -> bool:
        """Remove it if it has no message; whether it is gone now. There is nothing of it to forget."""
        with self._write() as db:
            db.execute(
                f"DELETE FROM conversations WHERE id = ? AND user_id = ? AND {EMPTY}",
                [conversation_id, user_id],
            )
            found = db.execute("SELECT 1 FROM conversations WHERE id = ?", [conversation_id]).fetchone()
            return found is None

    def rename_conversation(self, user_id: int, conversation_id: int, title: str) -> None:
        """Give it another title, which no model replaces. Raises NotFound."""
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            db.execute(
                "UPDATE conversations SET title = ?, title_given = 1 WHERE id = ?",
                [storable(title), conversation_id],
            )

    def pin_conversation(self, user_id: int, conversation_id: int, pinned: bool) -> None:
        """Keep it at the top of the list, or no longer. Raises NotFound."""
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            db.execute("UPDATE conversations SET pinned = ? WHERE id = ?", [pinned, conversation_id])

    def archive_conversation(self, user_id: int, conversation_id: int, archived: bool) -> None:
        """Put it away from the list, or bring it back; it is not pinned then. It drafts as before. Raises NotFound."""
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            db.execute(
                "UPDATE conversations SET archived = ?, pinned = 0 WHERE id = ?", [archived, conversation_id]
            )

    def held_of(self, user_id: int) -> tuple[int, int]:
        """How many conversations and messages there are of a user."""
        with self._read() as db:
            return db.execute(
                "SELECT count(DISTINCT conversations.id), count(messages.id)"
                " FROM conversations LEFT JOIN messages ON conversation_id = conversations.id WHERE user_id = ?",
                [user_id],
            ).fetchone()


def _conversation(row: dict[str, Any]) -> Conversation:
    tags = tuple(sorted(json.loads(row["tags"]), key=str.casefold))
    flags = {name: bool(row[name]) for name in ("pinned", "archived", "unread")}
    return Conversation(**row | flags | {"tags": tags})
