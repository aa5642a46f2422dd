"""Files that were sent with messages. They go with their message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.errors import NotFound
from hierchat.store.ownership import owned_message
from hierchat.store.records import Attachment, AttachmentHead
from hierchat.store.text import storable


class Attachments(Connected):
    """The part of Store that reads them."""

    def attachments(self, user_id: int, message_id: int) -> list[Attachment]:
        """The files of a message, in their order. Raises NotFound."""
        with self._read() as db:
            owned_message(db, user_id, message_id)
            return attachments_of(db, message_id)

    def attachment(self, user_id: int, attachment_id: int) -> Attachment:
        """One file. Raises NotFound."""
        with self._read() as db:
            row = db.execute(
                "SELECT message_id, name, size, text FROM attachments WHERE id = ?", [attachment_id]
            ).fetchone()
            if row is None:
                raise NotFound(f"There is no attachment {attachment_id}.")
            owned_message(db, user_id, row[0])
            return Attachment(*row[1:])


def attachments_of(db: Database, message_id: int) -> list[Attachment]:
    """The files of a message, whoever's."""
    rows = db.execute(
        "SELECT name, size, text FROM attachments WHERE message_id = ? ORDER BY id", [message_id]
    )
    return [Attachment(*row) for row in rows.fetchall()]


def heads(db: Database, conversation_id: int) -> Mapping[int, tuple[AttachmentHead, ...]]:
    """What is attached in a conversation, by message."""
    found: defaultdict[int, tuple[AttachmentHead, ...]] = defaultdict(tuple)
    rows = db.execute(
        "SELECT message_id, attachments.id, name, size FROM attachments JOIN messages ON messages.id = message_id"
        " WHERE conversation_id = ? ORDER BY attachments.id",
        [conversation_id],
    )
    for message_id, *head in rows.fetchall():
        found[message_id] += (AttachmentHead(*head),)
    return found


def attach(db: Database, message_id: int, files: Iterable[Attachment]) -> None:
    """Add files to a message."""
    for file in files:
        db.execute(
            "INSERT INTO attachments (message_id, name, size, text) VALUES (?, ?, ?, ?)",
            [message_id, storable(file.name), file.size, storable(file.text)],
        )
