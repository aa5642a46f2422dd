"""Results of comparisons. Each belongs to the conversation in which it was asked for, and goes with it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlite_utils import Database

from hierchat.store.connection import NotFound, owned_conversation
from hierchat.store.deletion import Deletion

_OWNED = (
    "SELECT comparisons.* FROM comparisons JOIN conversations ON conversations.id = conversation_id"
    " WHERE user_id = ? AND hidden_by IS NULL"
)


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """One result; `result` is JSON, which the store does not read."""

    id: int
    conversation_id: int
    created_at: float
    question: str
    result: str


class Comparisons(Deletion):
    """The part of Store that keeps them."""

    def keep_comparison(
        self, user_id: int, conversation_id: int, question: str, created_at: float, result: str
    ) -> int:
        """Its id; 0 in an incognito conversation, of which nothing is kept. Raises NotFound where it is gone."""
        with self._write() as db:
            if owned_conversation(db, user_id, conversation_id)["incognito"]:
                return 0
            row = db.execute(
                "INSERT INTO comparisons (conversation_id, created_at, question, result) VALUES (?, ?, ?, ?)",
                [conversation_id, created_at, question, result],
            )
            return int(row.lastrowid or 0)

    def comparisons(self, user_id: int, limit: int) -> list[StoredComparison]:
        """The newest ones first, at most `limit`."""
        with self._read() as db:
            rows = db.query(f"{_OWNED} ORDER BY comparisons.id DESC LIMIT ?", [user_id, limit])
            return [StoredComparison(**row) for row in rows]

    def comparison(self, user_id: int, comparison_id: int) -> StoredComparison:
        """One of them. Raises NotFound."""
        with self._read() as db:
            return _owned(db, user_id, comparison_id)

    def delete_comparison(self, user_id: int, comparison_id: int) -> None:
        """From the file, too. Raises NotFound."""
        with self._write() as db:
            _owned(db, user_id, comparison_id)
            db.execute("DELETE FROM comparisons WHERE id = ?", [comparison_id])
        self.rewrite()

    def delete_comparisons(self, user_id: int) -> int:
        """All of a user's; how many there were."""
        with self._write() as db:
            gone = db.execute(
                "DELETE FROM comparisons WHERE conversation_id IN (SELECT id FROM conversations WHERE user_id = ?)",
                [user_id],
            ).rowcount
        self.rewrite()
        return gone


def _owned(db: Database, user_id: int, comparison_id: int) -> StoredComparison:
    for row in db.query(f"{_OWNED} AND comparisons.id = ?", [user_id, comparison_id]):
        return StoredComparison(**row)
    raise NotFound("This comparison was deleted.")
