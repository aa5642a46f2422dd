"""Users and their conversations: create, list, search, rename, delete."""

from __future__ import annotations

import time

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.errors import DatabaseLocked, DatabaseUnwritable, StoreError, translated
from hierchat.store.learned import forget_learned
from hierchat.store.ownership import owned_conversation
from hierchat.store.records import Conversation
from hierchat.store.suffix_runs import forget_texts
from hierchat.store.text import match_expression, storable

LOCAL_USER = "local"
"""Whose chats a page without a login shows."""
_LIST = """
    SELECT id, title, created_at, updated_at FROM conversations WHERE user_id = :user
    ORDER BY updated_at DESC, id DESC LIMIT :limit
"""
# FTS5 makes no snippet inside a GROUP BY: hence first the newest hit of each conversation, then its text.
# MATERIALIZED and the + keep SQLite from running the match again for every conversation.
_SEARCH = """
    WITH hits AS MATERIALIZED (
        SELECT conversation_id AS id, max(messages.id) AS message_id
        FROM messages_fts
        JOIN messages ON messages.id = messages_fts.rowid
        JOIN conversations ON conversations.id = conversation_id
        WHERE messages_fts MATCH :match AND user_id = :user
        GROUP BY conversation_id
    ),
    snippets AS MATERIALIZED (
        SELECT rowid AS message_id, snippet(messages_fts, 0, '', '', '…', 12) AS snippet
        FROM messages_fts
        WHERE messages_fts MATCH :match AND +rowid IN (SELECT message_id FROM hits)
    )
    SELECT id, title, created_at, updated_at, ifnull(snippet, '') AS snippet
    FROM conversations LEFT JOIN hits USING (id) LEFT JOIN snippets USING (message_id)
    WHERE user_id = :user AND (
        message_id IS NOT NULL OR id IN (SELECT rowid FROM titles_fts WHERE titles_fts MATCH :match)
    )
    ORDER BY updated_at DESC, id DESC LIMIT :limit
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
            if not db.execute("SELECT 1 FROM users WHERE id = ?", [user_id]).fetchone():
                raise StoreError("All chats of this user were deleted. Reload the page.")
            return db.execute(
                "INSERT INTO conversations (user_id, title, created_at, updated_at) VALUES (?, ?, ?, ?)",
                [user_id, storable(title), now, now],
            ).lastrowid

    def conversations(self, user_id: int, query: str | None = None, limit: int = 200) -> list[Conversation]:
        """This user's conversations, the latest changed first.

        With a query, those whose title, or one of whose messages, holds all its words; the last may be the
        beginning of a word; case, accents and punctuation do not count. A blank query is none; one without a
        letter or digit finds nothing. A reply is found once it is finished.
        """
        parameters = {"user": user_id, "limit": limit}
        with self._read() as db:
            if query is None or not query.strip():
                return [Conversation(**row) for row in db.query(_LIST, parameters)]
            if not (match := match_expression(query)):
                return []
            return [Conversation(**row) for row in db.query(_SEARCH, parameters | {"match": match})]

    def conversation(self, user_id: int, conversation_id: int) -> Conversation:
        """One conversation. Raises NotFound."""
        with self._read() as db:
            row = owned_conversation(db, user_id, conversation_id)
            return Conversation(row["id"], row["title"], row["created_at"], row["updated_at"])

    def discard_conversation(self, user_id: int, conversation_id: int) -> bool:
        """Remove it if it has no message; whether it is gone now. There is nothing of it to forget."""
        with self._write() as db:
            db.execute(
                "DELETE FROM conversations WHERE id = ? AND user_id = ?"
                " AND NOT EXISTS (SELECT 1 FROM messages WHERE conversation_id = conversations.id)",
                [conversation_id, user_id],
            )
            found = db.execute("SELECT 1 FROM conversations WHERE id = ?", [conversation_id]).fetchone()
            return found is None

    def rename_conversation(self, user_id: int, conversation_id: int, title: str) -> None:
        """Give it another title. Raises NotFound."""
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            db.execute("UPDATE conversations SET title = ? WHERE id = ?", [storable(title), conversation_id])

    def delete_conversation(self, user_id: int, conversation_id: int) -> None:
        """Delete it, all that came of it and all that was learned so far, from the files too. Raises NotFound.

        Takes the time of rewriting the file. A reply that is being written into it gets NotFound at its next
        append. If another connection is reading at this moment, the log beside the database keeps deleted
        pages until the next checkpoint.
        """
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            forget_texts(db, user_id, conversation_id)
            db.execute("DELETE FROM conversations WHERE id = ?", [conversation_id])
            forget_learned(db, user_id)
            _drop_words(db)
        self.rewrite()  # deleted by now: a full disk or a busy one must not make it look otherwise

    def held_of(self, user_id: int) -> tuple[int, int]:
        """How many conversations and messages there are of a user."""
        with self._read() as db:
            return db.execute(
                "SELECT count(DISTINCT conversations.id), count(messages.id)"
                " FROM conversations LEFT JOIN messages ON conversation_id = conversations.id WHERE user_id = ?",
                [user_id],
            ).fetchone()

    def forget_user(self, user_id: int) -> bool:
        """Delete a user, all conversations and all that came of them, from the file too. The answer is `rewrite`'s."""
        with self._write() as db:
            db.execute("DELETE FROM users WHERE id = ?", [user_id])
            _drop_words(db)
        return self.rewrite()

    def rewrite(self) -> bool:
        """Rewrite the file without what was deleted. False where a full disk or another program that reads or
        writes keeps bytes of it there."""
        try:
            with translated(self.path):
                # secure_delete misses what moved between pages before (ran: one word in some thousands).
                self._database().execute("VACUUM")
                (busy, *_) = self._database().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (DatabaseLocked, DatabaseUnwritable):
            return False
        return not busy


def _drop_words(db: Database) -> None:
    """Only a merge of the whole search index drops the words of what was deleted."""
    db.execute("INSERT INTO messages_fts (messages_fts) VALUES ('optimize')")
    db.execute("INSERT INTO titles_fts (titles_fts) VALUES ('optimize')")
