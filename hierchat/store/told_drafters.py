"""What drafters outside of this program were told of, so that they forget what is deleted here, even if they cannot be
reached at that moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.ownership import owned_message

_AT_ONCE = 1000
_GONE = """
    SELECT told_drafters.id, user, reply FROM told_drafters
    LEFT JOIN messages ON messages.id = message_id
    LEFT JOIN conversations ON conversations.id = messages.conversation_id
    WHERE place = ? AND (messages.id IS NULL OR hidden_by IS NOT NULL)
    ORDER BY told_drafters.id LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Told:
    """One reply, as the drafter calls it and its user."""

    id: int
    user: str
    reply: str


class ToldDrafters(Connected):
    """The part of Store that knows what stands elsewhere."""

    def called_by_drafters(self, user_id: int) -> str:
        """What drafters call a user."""
        with self._read() as db:
            return _called(db, user_id)

    def tell_drafter(self, place: str, user_id: int, message_id: int, begun: int = 0) -> tuple[str, str]:
        """Note that the drafter there is told of a reply, or of what follows its first `begun` tokens; what it calls
        the user and the reply. Raises NotFound."""
        with self._write() as db:
            owned_message(db, user_id, message_id)
            names = (_called(db, user_id), f"m{message_id}-{begun}" if begun else f"m{message_id}")
            db.execute(
                "INSERT INTO told_drafters (place, user, reply, message_id) VALUES (?, ?, ?, ?)",
                [place, *names, message_id],
            )
        return names

    def to_forget(self, place: str) -> list[Told]:
        """What the drafter there has to forget: it was deleted here, or hidden until then. Some thousand at most."""
        with self._read() as db:
            return [Told(*row) for row in db.execute(_GONE, [place, _AT_ONCE]).fetchall()]

    def drafter_forgot(self, told: Iterable[Told]) -> None:
        """It has."""
        with self._write() as db:
            db.execute(
                "DELETE FROM told_drafters WHERE id IN (SELECT value FROM json_each(?))",
                [str([one.id for one in told])],
            )


def _called(db: Database, user_id: int) -> str:
    (ours,) = db.execute("SELECT name FROM drafters").fetchone()
    return f"{ours}-{user_id}"
