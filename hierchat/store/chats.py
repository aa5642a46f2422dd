"""Users and their conversations: create, list, search, rename, pin, archive."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlite_utils import Database

from hierchat.store.connection import (
    FOUND_BEGINS,
    FOUND_ENDS,
    Connected,
    match_expression,
    owned_conversation,
    require_user,
    split_tags,
    storable,
    title_of,
)
from hierchat.store.records import Conversation

# Tags of conversations: short names by which the user groups them.


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


# Titles that a model writes, in place of a conversation's first words.


_NEW = """
    SELECT conversations.id, user_id, title FROM conversations JOIN users ON users.id = user_id
    WHERE conversations.created_at > :since AND model_titles AND NOT title_given AND title <> ''
        AND hidden_by IS NULL
        AND NOT EXISTS (SELECT 1 FROM title_tries WHERE conversation_id = conversations.id AND model_key = :model)
        AND EXISTS (
            SELECT 1 FROM messages JOIN turns ON message_id = messages.id
            WHERE conversation_id = conversations.id AND state <> 'writing' AND text <> ''
        )
    ORDER BY updated_at
"""
_FIRST_WORDS = "SELECT text FROM messages WHERE conversation_id = ? AND role = 'user' ORDER BY id LIMIT 1"


@dataclass(frozen=True, slots=True)
class Untitled:
    """A conversation whose title is its first words."""

    id: int
    user_id: int
    title: str


class Titles(Connected):
    """The part of Store that knows who gave a title."""

    def untitled(self, model_key: str, since: float) -> list[Untitled]:
        """Conversations begun after that time, with a reply, that this model did not try to name: of all users who
        want that. The one that was changed last stands last."""
        with self._read() as db:
            rows = db.execute(_NEW, {"model": model_key, "since": since}).fetchall()
            firsts = {id: db.execute(_FIRST_WORDS, [id]).fetchone() for id, _, _ in rows}
        return [Untitled(*row) for row in rows if firsts[row[0]] and title_of(firsts[row[0]][0]) == row[2]]

    def title_by_model(self, chat: Untitled, model_key: str, title: str | None) -> bool:
        """That this model tried, and what came of it (None: nothing). Whether the title changed: not where the user
        gave one, or deleted the chat, meanwhile."""
        with self._write() as db:
            db.execute(
                "INSERT OR IGNORE INTO title_tries (conversation_id, model_key)"
                " SELECT id, ? FROM conversations WHERE id = ?",
                [model_key, chat.id],
            )
            changed = db.execute(
                "UPDATE conversations SET title = ifnull(?, title)"
                " WHERE id = ? AND title = ? AND NOT title_given AND hidden_by IS NULL",
                [title, chat.id, chat.title],
            ).rowcount
        return bool(title and changed)

    def model_titles(self, user_id: int) -> bool:
        """Whether a model may name this user's new chats."""
        with self._read() as db:
            row = db.execute("SELECT model_titles FROM users WHERE id = ?", [user_id]).fetchone()
            return bool(row and row[0])

    def allow_model_titles(self, user_id: int, allowed: bool) -> None:
        """Let a model name this user's new chats, or no longer. Titles that are there stay."""
        with self._write() as db:
            db.execute("UPDATE users SET model_titles = ? WHERE id = ?", [allowed, user_id])
