"""Titles that a model writes, in place of a conversation's first words."""

from __future__ import annotations

from dataclasses import dataclass

from hierchat.store.connection import Connected
from hierchat.store.text import title_of

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
