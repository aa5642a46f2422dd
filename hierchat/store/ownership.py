"""The one place that decides whether a user may see a conversation or a message."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database

from hierchat.store.errors import NotFound, StoreError


def require_user(db: Database, user_id: int) -> None:
    """Raises StoreError where the user was forgotten."""
    if not db.execute("SELECT 1 FROM users WHERE id = ?", [user_id]).fetchone():
        raise StoreError("All chats of this user were deleted. Reload the page.")


def owned_conversation(db: Database, user_id: int, conversation_id: int) -> dict[str, Any]:
    """The conversation's row. Raises NotFound if it is missing, hidden or another user's, the same for all."""
    for row in db.query(
        "SELECT * FROM conversations WHERE id = ? AND user_id = ? AND (hidden_by IS NULL OR incognito)",
        [conversation_id, user_id],
    ):
        return row
    raise NotFound(f"There is no conversation {conversation_id}. It may have been deleted.")


def owned_message(db: Database, user_id: int, message_id: int) -> dict[str, Any]:
    """The message's row. Raises NotFound as owned_conversation does."""
    for row in db.query(
        "SELECT messages.* FROM messages JOIN conversations ON conversations.id = conversation_id"
        " WHERE messages.id = ? AND user_id = ? AND (hidden_by IS NULL OR incognito)",
        [message_id, user_id],
    ):
        return row
    raise NotFound(f"There is no message {message_id}. Its conversation may have been deleted.")
