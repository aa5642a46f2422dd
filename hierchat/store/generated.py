"""Store texts that a model generated while idle, for one user: keep, count and delete them."""

import time
from dataclasses import dataclass

import numpy as np

from hierchat.store.connection import drop_words
from hierchat.store.replies import TOKEN
from hierchat.store.repository import Repository

LONGEST = 400
"""Characters of a question from which others are made."""
MOST_QUESTIONS = 500
"""The latest ones count."""
SELF = "self"
"""The slot of spans (records.Origin) whose drafts were found in these texts."""

# The first message of a chat stands for itself; later ones mean what was said before them.
_QUESTIONS = """
    SELECT messages.id, messages.text
    FROM messages
    JOIN conversations ON conversations.id = messages.conversation_id
    LEFT JOIN messages AS above ON above.id = messages.parent_id
    WHERE user_id = ? AND messages.role = 'user' AND ifnull(above.role, 'system') = 'system'
        AND hidden_by IS NULL AND messages.copy_of IS NULL AND length(messages.text) BETWEEN 8 AND ?
        AND NOT EXISTS (SELECT 1 FROM attachments WHERE message_id = messages.id)
    ORDER BY messages.id DESC LIMIT ?
"""
_KEEP = """
    INSERT OR REPLACE INTO self_texts (user_id, model_key, key, turn, origin_id, ids, done, created_at)
    SELECT id, :model, :key, :turn, :origin, :ids, :done, :now FROM users
    WHERE id = :user AND deletions = :deletions AND (:origin IS NULL OR EXISTS (
        SELECT 1 FROM messages JOIN conversations ON conversations.id = conversation_id
        WHERE messages.id = :origin AND user_id = users.id
    ))
"""
_SIZE = """
    SELECT count(*), ifnull(sum(length(ids)), 0)
    FROM self_texts WHERE user_id = :user AND model_key = ifnull(:model, model_key)
"""


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """Generated reply, or its beginning while it is not `done`."""

    turn: int
    ids: tuple[int, ...]
    done: bool


@dataclass(frozen=True, slots=True)
class GeneratedSize:
    """Size of a user's generated texts. `size`: bytes in the database."""

    texts: int = 0
    tokens: int = 0
    size: int = 0


class GeneratedTexts(Repository):
    """Stores texts that a model generated while idle. They stand in no list, search or export, but in backups."""

    def questions(self, user_id: int) -> list[tuple[int, str]]:
        """Return id and text of the questions that open a user's chats, the latest first."""
        return self._rows(_QUESTIONS, [user_id, LONGEST, MOST_QUESTIONS])

    def replies(self, user_id: int, model_key: str) -> dict[str, int]:
        """Return the number of finished replies by conversation; 0 while the first one is unfinished."""
        done = "SELECT key, sum(done) FROM self_texts WHERE user_id = ? AND model_key = ? GROUP BY key"
        return dict(self._rows(done, [user_id, model_key]))

    def texts(self, user_id: int, model_key: str, key: str) -> list[GeneratedText]:
        rows = self._rows(
            "SELECT turn, ids, done FROM self_texts WHERE user_id = ? AND model_key = ? AND key = ? ORDER BY turn",
            [user_id, model_key, key],
        )
        return [
            GeneratedText(turn, tuple(np.frombuffer(ids, TOKEN).tolist()), bool(done))
            for turn, ids, done in rows
        ]

    def keep(
        self,
        user_id: int,
        model_key: str,
        key: str,
        reply: GeneratedText,
        origin: int | None,
        *,
        deletions: int,
    ) -> bool:
        """Store a reply in place of its beginning. `origin`: the user's message; `deletions`: as LearnedValues.keep."""
        values = {
            "user": user_id,
            "model": model_key,
            "key": key,
            "turn": reply.turn,
            "origin": origin,
            "ids": np.asarray(reply.ids, TOKEN).tobytes(),
            "done": reply.done,
            "now": time.time(),
            "deletions": deletions,
        }
        return self._run(_KEEP, values) > 0

    def size(self, user_id: int, model_key: str | None = None) -> GeneratedSize:
        """Return the size of a user's generated texts, of one model or of all."""
        ((texts, size),) = self._rows(_SIZE, {"user": user_id, "model": model_key})
        return GeneratedSize(texts, size // TOKEN.itemsize, size)

    def delete(self, user_id: int) -> bool:
        """Delete all generated texts of a user, from the file too; returns `rewrite`'s answer."""
        with self._connection.write() as db:
            db.execute("DELETE FROM self_texts WHERE user_id = ?", [user_id])
            # Whatever holds them in memory looks for what is there.
            db.execute("UPDATE users SET deletions = deletions + 1 WHERE id = ?", [user_id])
            drop_words(db)
        return self._connection.rewrite()
