"""Store what makes replies faster: tokens of earlier messages, but not of hidden or copied ones, what drafting has
learned, and what the model has read."""

import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
from sqlite_utils import Database

from hierchat.store.connection import Connection, add_row
from hierchat.store.errors import StoreError
from hierchat.store.replies import TOKEN
from hierchat.store.repository import Repository, owned_message

TextKind = Literal["written", "asked"]
"""Written by models; asked or edited by the user."""

_TEXTS = """
    SELECT message_id, ids, lead
    FROM turns
    JOIN token_log USING (message_id)
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE :kind = 'written' AND model_key = :model AND message_id > :message
        AND user_id = :user AND state <> 'writing' AND length(ids) > 0 AND hidden_by IS NULL AND copy_of IS NULL
    UNION ALL
    SELECT message_id, ids, x'' AS lead
    FROM message_tokens
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE message_tokens.id > :tokenised AND model_key = :model AND user_id = :user
        AND iif(role = 'user' OR edited, 'asked', 'written') = :kind
        AND length(ids) > 0 AND hidden_by IS NULL
"""
"""Name and tokens of all texts of a kind since a mark, and what came before them in their prompts."""


class DraftText(NamedTuple):
    """A text that drafts: `tokens` (dtype TOKEN) of its id, of which the first `lead` are the end of its prompt."""

    id: int
    tokens: bytes
    lead: int


_WITHOUT_TOKENS = """
    SELECT messages.id, text
    FROM messages
    JOIN conversations ON conversations.id = conversation_id
    LEFT JOIN turns ON turns.message_id = messages.id
    WHERE messages.id > :after AND messages.id < ifnull(:before, messages.id + 1) AND user_id = :user
        AND text <> '' AND role <> 'system' AND turns.message_id IS NULL AND hidden_by IS NULL AND copy_of IS NULL
        AND NOT EXISTS (SELECT 1 FROM message_tokens WHERE message_id = messages.id AND model_key = :model)
    ORDER BY messages.id LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a user's texts were read: replies up to a message, other texts up to a row."""

    message: int = 0
    tokenised: int = 0


class History(Repository):
    """Stores the texts that draft for a user, as tokens."""

    def texts(
        self, user_id: int, model_key: str, kind: TextKind, since: Mark
    ) -> tuple[list[DraftText], Mark]:
        """Return every text since a mark, and the next mark; some may come again."""
        values = _values(user_id, model_key, kind, since)
        with self._connection.read() as db:
            texts = [
                DraftText(id, lead + ids, len(lead) // TOKEN.itemsize)
                for id, ids, lead in db.execute(_TEXTS, values).fetchall()
            ]
            (message,) = db.execute(
                "SELECT coalesce((SELECT min(id) - 1 FROM messages WHERE state = 'writing'), max(id), 0) FROM messages"
            ).fetchone()
            (tokenised,) = db.execute("SELECT ifnull(max(id), 0) FROM message_tokens").fetchone()
        texts.sort(key=lambda text: text.id)
        return texts, Mark(message, tokenised)

    def ids(self, user_id: int, model_key: str, kind: TextKind) -> set[int]:
        values = _values(user_id, model_key, kind, Mark())
        return {id for (id,) in self._rows(f"SELECT message_id FROM ({_TEXTS})", values)}

    def without_tokens(
        self, user_id: int, model_key: str, after: int, before: int | None, limit: int
    ) -> list[tuple[int, str]]:
        """Return id and text of the user's messages without stored tokens, oldest first, between two messages."""
        values = {"user": user_id, "model": model_key, "after": after, "before": before, "limit": limit}
        return self._rows(_WITHOUT_TOKENS, values)

    def keep_tokens(self, model_key: str, texts: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Store tokens of messages that no model wrote here; messages that were deleted meanwhile are left out."""
        rows = [(model_key, np.asarray(ids, TOKEN).tobytes(), id) for id, ids in texts]
        with self._connection.write() as db:
            db.conn.executemany(
                "INSERT OR IGNORE INTO message_tokens (message_id, model_key, ids)"
                " SELECT id, ?, ? FROM messages WHERE id = ?",
                rows,
            )


def _values(user_id: int, model_key: str, kind: TextKind, since: Mark) -> dict[str, int | str]:
    return {"user": user_id, "model": model_key, "kind": kind, **asdict(since)}


class LearnedValues(Repository):
    """Stores what drafting has learned. It can be learned again: if it is lost, replies are only slower for a while."""

    def get(self, user_id: int, model_key: str, kind: str) -> bytes | None:
        """Return the value that `keep` stored last; None if there is none."""
        stored = "SELECT value FROM learned WHERE user_id = ? AND model_key = ? AND kind = ?"
        return next((value for (value,) in self._rows(stored, [user_id, model_key, kind])), None)

    def keep(
        self, user_id: int, model_key: str, kind: str, value: bytes, *, deletions: int | None = None
    ) -> bool:
        """Store a learned value of one kind. False, and nothing, if texts were deleted since learning began."""
        changed = self._run(
            "INSERT INTO learned (user_id, model_key, kind, value, updated_at)"
            " SELECT id, ?, ?, ?, ? FROM users WHERE id = ? AND deletions = ifnull(?, deletions)"
            " ON CONFLICT DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
            [model_key, kind, value, time.time(), user_id, deletions],
        )
        return changed > 0

    def forget(self, user_id: int) -> None:
        """Delete all values learned from this user's replies, with every model."""
        with self._connection.write() as db:
            forget_learned(db, user_id)

    def agreement(self, model_key: str, drafts: str) -> bytes | None:
        """Return what `keep_agreement` stored last; None if there is nothing."""
        stored = "SELECT value FROM latency WHERE model_key = ? AND machine = ?"
        return next((value for (value,) in self._rows(stored, [model_key, drafts])), None)

    def keep_agreement(self, model_key: str, drafts: str, value: bytes) -> None:
        """Store how often a model agrees with its draft models. It says nothing of what a user wrote."""
        self._run(
            "INSERT OR REPLACE INTO latency (model_key, machine, value, updated_at) VALUES (?, ?, ?, ?)",
            [model_key, drafts, value, time.time()],
        )


def forget_learned(db: Database, user_id: int) -> None:
    """Delete all learned values of a user, in the transaction that deletes something of theirs."""
    db.execute("DELETE FROM learned WHERE user_id = ?", [user_id])
    db.execute("UPDATE users SET deletions = deletions + 1 WHERE id = ?", [user_id])


_AT_ONCE = 1000
_GONE = """
    SELECT told_drafters.id, user, reply FROM told_drafters
    LEFT JOIN messages ON messages.id = message_id
    LEFT JOIN conversations ON conversations.id = messages.conversation_id
    WHERE place = ? AND (messages.id IS NULL OR hidden_by IS NOT NULL)
    ORDER BY told_drafters.id LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class SentReply:
    """Reply that was sent to a drafter in another process, with the names of user and reply there."""

    id: int
    user: str
    reply: str


class DeletionOutbox(Repository):
    """Lists replies that were sent to a drafter in another process, until that has forgotten them."""

    def name_of(self, user_id: int) -> str:
        """Return the name by which drafters in other processes know a user."""
        with self._connection.read() as db:
            return _called(db, user_id)

    def add(self, place: str, user_id: int, message_id: int) -> tuple[str, str]:
        """Record that the drafter at `place` gets a reply; return its names. Raises NotFound."""
        with self._connection.write() as db:
            owned_message(db, user_id, message_id)
            names = (_called(db, user_id), f"m{message_id}")
            add_row(db, "told_drafters", place=place, user=names[0], reply=names[1], message_id=message_id)
        return names

    def pending(self, place: str) -> list[SentReply]:
        """Return at most 1,000 replies that the drafter has to forget: they were deleted here, or are hidden."""
        return [SentReply(*row) for row in self._rows(_GONE, [place, _AT_ONCE])]

    def remove(self, told: Iterable[SentReply]) -> None:
        """Remove replies that the drafter has forgotten from the list."""
        ids = str([one.id for one in told])
        self._run("DELETE FROM told_drafters WHERE id IN (SELECT value FROM json_each(?))", [ids])


def _called(db: Database, user_id: int) -> str:
    (ours,) = db.execute("SELECT name FROM drafters").fetchone()
    return f"{ours}-{user_id}"


_KEPT = (
    "SELECT conversations.user_id, conversations.id FROM conversations JOIN users ON users.id = conversations.user_id"
    " WHERE NOT incognito AND hidden_by IS NULL AND name NOT IN (SELECT name FROM guests)"
)


class PrefixFolders:
    """Folder of what the model has read (engine/cpu/prefixes.py), by user and chat. Every deletion calls `sweep`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.path = connection.path.with_name(connection.path.name + ".prefixes")
        connection.before_rewriting = self.sweep

    def may_keep(self, user_id: int, chat: int) -> bool:
        """Return whether this chat's text may be written: not an incognito, deleted or guest's one."""
        with self._connection.read() as db:
            wanted = f"{_KEPT} AND conversations.user_id = ? AND conversations.id = ?"
            return db.execute(wanted, [user_id, chat]).fetchone() is not None

    def sweep(self) -> None:
        """Delete the folders of all chats whose text may not be kept. Raises nothing."""
        if not self.path.is_dir():
            return
        with suppress(OSError, StoreError):  # the next sweep finds what is left
            with self._connection.read() as db:
                kept = {(str(user), str(chat)) for user, chat in db.execute(_KEPT)}
            for chat in list(self.path.glob("*/*")):
                if (chat.parent.name, chat.name) not in kept:
                    shutil.rmtree(chat, ignore_errors=True)

    def drop(self, user_id: int) -> None:
        shutil.rmtree(self.path / str(user_id), ignore_errors=True)
