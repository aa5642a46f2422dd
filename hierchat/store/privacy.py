"""What of a user's texts may draft, and conversations that leave nothing."""

from __future__ import annotations

import time
from typing import Literal

from hierchat.store.deletion import Deletion
from hierchat.store.ownership import owned_conversation, require_user
from hierchat.store.writers import this_process

DraftsFrom = Literal["all", "chat", "none"]
"""All that is stored of this user and all corpora; the chat itself alone, and draft models; no text: the model writes
alone."""


class Privacy(Deletion):
    """The part of Store that decides what is used and what is kept."""

    def drafts_from(self, user_id: int, conversation_id: int | None = None) -> DraftsFrom:
        """What may draft a reply, in this conversation where one is named: an incognito one takes from no other."""
        with self._read() as db:
            row = db.execute("SELECT drafts_from FROM users WHERE id = ?", [user_id]).fetchone()
            chosen: DraftsFrom = row[0] if row else "all"
            if chosen == "all" and conversation_id is not None:
                incognito = owned_conversation(db, user_id, conversation_id)["incognito"]
                return "chat" if incognito else "all"
        return chosen

    def set_drafts_from(self, user_id: int, chosen: DraftsFrom) -> None:
        """Choose it for all replies to come."""
        with self._write() as db:
            db.execute("UPDATE users SET drafts_from = ? WHERE id = ?", [chosen, user_id])

    def begin_incognito(self, user_id: int) -> int:
        """The id of a new conversation that stands in no list and drafts for no other, until `end_incognito`.

        Its texts lie in the file until then. If this store closes first, they go then; if the process dies, when the
        file is opened next. Raises StoreError where the user was forgotten.
        """
        now = time.time()
        with self._write() as db:
            require_user(db, user_id)
            conversation = db.execute(
                "INSERT INTO conversations"
                " (user_id, title, created_at, updated_at, hidden_by, hider_started, incognito)"
                " VALUES (?, '', ?, ?, ?, ?, 1)",
                [user_id, now, now, *this_process()],
            ).lastrowid
        self._hidden.add(conversation)
        return int(conversation)

    def end_incognito(self, user_id: int, conversation_id: int) -> None:
        """Delete it for good, from the files too; one that is none, or gone, stays as it is.

        Takes the time of rewriting the file.
        """
        with self._write() as db:
            ended = db.execute(
                "UPDATE conversations SET incognito = 0 WHERE id = ? AND user_id = ? AND incognito",
                [conversation_id, user_id],
            ).rowcount
        if ended:
            self.delete_hidden([conversation_id])
