"""Define the base of the classes that read and write one kind of thing, and decide which rows are whose."""

from typing import Any

from sqlite_utils import Database

from hierchat.store.connection import Connection
from hierchat.store.errors import NotFound, StoreError


class Repository:
    """Base of the classes that read and write one kind of thing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes = connection.changes

    def _rows(self, query: str, values: Any = ()) -> list[Any]:
        with self._connection.read() as db:
            return db.execute(query, values).fetchall()

    def _run(self, statement: str, values: Any = ()) -> int:
        with self._connection.write() as db:
            return db.execute(statement, values).rowcount


def require_user(db: Database, user_id: int) -> None:
    """Raise StoreError if the user was deleted."""
    if not db.execute("SELECT 1 FROM users WHERE id = ?", [user_id]).fetchone():
        raise StoreError("All chats of this user were deleted. Reload the page.")


def owned_conversation(
    db: Database, user_id: int, conversation_id: int, *, hidden: bool = False
) -> dict[str, Any]:
    """Return a conversation's row. Raises NotFound if it is missing or another user's, or hidden unless a `hidden` one
    is wanted, too; the same for all."""
    for row in db.query(
        "SELECT * FROM conversations WHERE id = ? AND user_id = ? AND (? OR hidden_by IS NULL OR incognito)",
        [conversation_id, user_id, hidden],
    ):
        return row
    raise NotFound(f"There is no conversation {conversation_id}. It may have been deleted.")


def owned_message(db: Database, user_id: int, message_id: int) -> dict[str, Any]:
    """Return a message's row. Raises NotFound as owned_conversation does."""
    for row in db.query(
        "SELECT messages.* FROM messages JOIN conversations ON conversations.id = conversation_id"
        " WHERE messages.id = ? AND user_id = ? AND (hidden_by IS NULL OR incognito)",
        [message_id, user_id],
    ):
        return row
    raise NotFound(f"There is no message {message_id}. Its conversation may have been deleted.")
