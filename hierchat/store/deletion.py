"""Deleting conversations: out of sight and out of the drafts at once, out of the files when nobody undid it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from sqlite_utils import Database

from hierchat.store.connection import (
    Connected,
    DatabaseLocked,
    DatabaseUnwritable,
    NotFound,
    StoreError,
    is_running,
    owned_conversation,
    require_user,
    this_process,
    translated,
)
from hierchat.store.history import forget_learned, forget_texts

# Of several copies of a message that goes, the first becomes the original of the others.
_BEQUEATH = """
    UPDATE messages SET copy_of = nullif(heirs.first, messages.id)
    FROM (
        SELECT copy_of AS original, min(id) AS first FROM messages
        WHERE copy_of IN (SELECT id FROM messages WHERE conversation_id = ?) GROUP BY copy_of
    ) AS heirs
    WHERE messages.copy_of = heirs.original
"""


class Deletion(Connected):
    """The part of Store that deletes. What is hidden counts as missing everywhere, and no draft comes from it."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        # Conversations that this store hid and has to delete in the end.
        self._hidden: set[int] = set()
        super().__init__(path, busy_seconds)

    def hide_conversation(self, user_id: int, conversation_id: int) -> None:
        """Delete it, but so that `restore_conversation` can take it back until `delete_hidden`. Raises NotFound.

        All that was learned so far is forgotten now. A reply that is being written into it goes on unseen. If this
        store closes first, it is deleted then; if the process dies, when the file is opened next.
        """
        with self._write() as db:
            _forget(db, user_id, conversation_id)
            db.execute(
                "UPDATE conversations SET hidden_by = ?, hider_started = ?, incognito = 0 WHERE id = ?",
                [*this_process(), conversation_id],
            )
        self._hidden.add(conversation_id)

    def restore_conversation(self, user_id: int, conversation_id: int) -> None:
        """Take back what `hide_conversation` did; it drafts again. Raises NotFound where it is deleted by now."""
        with self._write() as db:
            if not show_again(db, user_id, conversation_id):
                raise NotFound("This chat was deleted for good.")
        self._hidden.discard(conversation_id)

    def delete_hidden(self, conversation_ids: Iterable[int] | None = None) -> None:
        """Delete for good what this store hid, all of it or these, from the files too; what was restored stays.

        Takes the time of rewriting the file. A reply that is being written there gets NotFound at its next append. If
        another connection is reading at this moment, the log beside the database keeps deleted pages until the next
        checkpoint.
        """
        mine = self._hidden.intersection(self._hidden if conversation_ids is None else conversation_ids)
        if mine:
            self._delete(mine)
            self._hidden -= mine

    def delete_abandoned(self) -> None:
        """Delete what processes hid that no longer run."""
        with self._read() as db:
            rows = db.execute(
                "SELECT id, hidden_by, hider_started FROM conversations WHERE hidden_by IS NOT NULL"
            ).fetchall()
        if gone := {id for id, pid, started in rows if not is_running(pid, started)}:
            self._delete(gone)

    def close(self) -> None:
        """Delete what is hidden, and close the connections of all threads."""
        try:
            if not self._closed:
                self.delete_hidden()
        except StoreError:
            pass  # a disk that cannot be written: the next open will delete them
        finally:
            super().close()

    def _delete(self, hidden: Iterable[int]) -> None:
        with self._write() as db:
            for id in hidden:
                db.execute("DELETE FROM conversations WHERE id = ? AND hidden_by IS NOT NULL", [id])
            drop_words(db)
        self.rewrite()  # deleted by now: a full disk or a busy one must not make it look otherwise

    def forget_user(self, user_id: int) -> bool:
        """Delete a user, all conversations and all that came of them, from the file too. The answer is `rewrite`'s."""
        with self._write() as db:
            db.execute("DELETE FROM users WHERE id = ?", [user_id])
            drop_words(db)
        return self.rewrite()

    def rewrite(self) -> bool:
        """Rewrite the file without what was deleted. False where a full disk or another program that reads or
        writes keeps bytes of it there."""
        try:
            with translated(self.path), self._connected() as db:
                # secure_delete misses what moved between pages before (ran: one word in some thousands).
                db.execute("VACUUM")
                (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except (DatabaseLocked, DatabaseUnwritable):
            return False
        if busy:
            self._fold_later()
        return not busy


def show_again(db: Database, user_id: int, conversation_id: int) -> bool:
    """Take back that a conversation was hidden; False where none of this user's is."""
    found = db.execute(
        "UPDATE conversations SET hidden_by = NULL, hider_started = NULL, incognito = 0"
        " WHERE id = ? AND user_id = ? AND hidden_by IS NOT NULL",
        [conversation_id, user_id],
    ).rowcount
    if found:
        # Whatever holds texts in memory looks for what is there.
        db.execute("UPDATE users SET deletions = deletions + 1 WHERE id = ?", [user_id])
    return bool(found)


def drop_words(db: Database) -> None:
    """Out of the search, as part of a transaction that deletes texts."""
    # Only a merge of the whole index drops the words of what was deleted.
    db.execute("INSERT INTO messages_fts (messages_fts) VALUES ('optimize')")
    db.execute("INSERT INTO titles_fts (titles_fts) VALUES ('optimize')")
    db.execute("INSERT INTO attachments_fts (attachments_fts) VALUES ('optimize')")


def _forget(db: Database, user_id: int, conversation_id: int) -> None:
    """Out of all that is derived from it. Raises NotFound."""
    owned_conversation(db, user_id, conversation_id)
    forget_texts(db, user_id, conversation_id)
    forget_learned(db, user_id)
    db.execute(_BEQUEATH, [conversation_id])


# What of a user's texts may draft, and conversations that leave nothing.


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
