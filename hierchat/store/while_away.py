"""What happens while no page looks on: whether replies go on then, and in which chats one came."""

from __future__ import annotations

from hierchat.store.connection import Connected
from hierchat.store.ownership import owned_conversation


class WhileAway(Connected):
    """The part of Store that knows this."""

    def keeps_writing(self, user_id: int) -> bool:
        """Whether this user's replies go on when the last page was closed."""
        with self._read() as db:
            row = db.execute("SELECT keep_writing FROM users WHERE id = ?", [user_id]).fetchone()
            return row is None or bool(row[0])

    def keep_writing(self, user_id: int, on: bool) -> None:
        """Let replies go on when the last page was closed, or stop them then."""
        with self._write() as db:
            db.execute("UPDATE users SET keep_writing = ? WHERE id = ?", [on, user_id])

    def mark_unread(self, user_id: int, conversation_id: int, unread: bool) -> None:
        """Whether a reply came there that was not seen yet. Raises NotFound."""
        with self._write() as db:
            owned_conversation(db, user_id, conversation_id)
            db.execute("UPDATE conversations SET unread = ? WHERE id = ?", [unread, conversation_id])
