"""What was learned from replies: per user and model, and what a model's steps cost on a machine."""

from __future__ import annotations

import time

from sqlite_utils import Database

from hierchat.store.connection import Connected


class LearnedValues(Connected):
    """The part of Store that keeps what was learned. It is derived data: losing it costs speed alone."""

    def learned(self, user_id: int, model_key: str, kind: str) -> bytes | None:
        """What `learn` kept last."""
        with self._read() as db:
            row = db.execute(
                "SELECT value FROM learned WHERE user_id = ? AND model_key = ? AND kind = ?",
                [user_id, model_key, kind],
            ).fetchone()
            return row and row[0]

    def all_learned(self, user_id: int, kind: str) -> dict[str, bytes]:
        """The values of one kind, by model_key."""
        with self._read() as db:
            rows = db.execute(
                "SELECT model_key, value FROM learned WHERE user_id = ? AND kind = ? ORDER BY updated_at",
                [user_id, kind],
            )
            return dict(rows.fetchall())

    def learn(
        self, user_id: int, model_key: str, kind: str, value: bytes, *, deletions: int | None = None
    ) -> bool:
        """Keep a value of one kind in place of the last.

        `deletions`: how many there were when learning began. Where there have been more since, nothing is written,
        and the answer is False: the value may hold traces of what was deleted.
        """
        with self._write() as db:
            changed = db.execute(
                "INSERT INTO learned (user_id, model_key, kind, value, updated_at)"
                " SELECT id, ?, ?, ?, ? FROM users WHERE id = ? AND deletions = ifnull(?, deletions)"
                " ON CONFLICT DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
                [model_key, kind, value, time.time(), user_id, deletions],
            ).rowcount
        return changed > 0

    def deletions(self, user_id: int) -> int:
        """How often something of this user's was deleted: after one more, what was learned is to be dropped.
        -1 where the user was forgotten."""
        with self._read() as db:
            row = db.execute("SELECT deletions FROM users WHERE id = ?", [user_id]).fetchone()
            return row[0] if row else -1

    def forget_learned(self, user_id: int) -> None:
        """Drop all that was learned from this user's replies, with every model."""
        with self._write() as db:
            forget_learned(db, user_id)

    def latency(self, model_key: str, machine: str) -> bytes | None:
        """The costs that `keep_latency` kept last."""
        with self._read() as db:
            row = db.execute(
                "SELECT value FROM latency WHERE model_key = ? AND machine = ?", [model_key, machine]
            ).fetchone()
            return row and row[0]

    def keep_latency(self, model_key: str, machine: str, value: bytes) -> None:
        """Keep what steps of a model cost on a machine. It tells nothing of what was written."""
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO latency (model_key, machine, value, updated_at) VALUES (?, ?, ?, ?)",
                [model_key, machine, value, time.time()],
            )


def forget_learned(db: Database, user_id: int) -> None:
    """As part of a transaction that deletes something of this user's."""
    db.execute("DELETE FROM learned WHERE user_id = ?", [user_id])
    db.execute("UPDATE users SET deletions = deletions + 1 WHERE id = ?", [user_id])
