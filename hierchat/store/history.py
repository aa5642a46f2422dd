"""Store tokens of earlier messages and orders of their suffixes, but not of hidden or copied ones."""

import logging
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sqlite_utils import Database

from hierchat.store.connection import add_row
from hierchat.store.replies import TOKEN
from hierchat.store.repository import Repository, owned_message

# Orders of suffixes as they are stored: which texts one covers, and what of it stays when some of them go.
TEXT, POSITION = np.dtype("<i8"), np.dtype("<i4")


@dataclass(frozen=True, slots=True, eq=False)
class SuffixRun:
    """Sorted order of the suffixes of some texts, each followed by one token that is in no order."""

    texts: NDArray[np.int64]  # [texts, 2]: its id among those of its TextKind, and number of tokens
    order: NDArray[np.int32]  # positions, counted from the first token of the first text

    @property
    def length(self) -> int:
        """Return how many tokens the order covers, including those behind the texts."""
        return int((self.texts[:, 1] + 1).sum())

    @property
    def sound(self) -> bool:
        """Return whether each position of the texts stands in the order once."""
        lengths = self.texts[:, 1]
        if lengths.min(initial=1) < 1 or self.order.size != lengths.sum():
            return False
        if self.order.min(initial=0) < 0 or self.order.max(initial=0) >= self.length:
            return False
        seen = np.zeros(self.length, np.bool_)
        seen[self.order] = True
        seen[np.cumsum(lengths + 1) - 1] = True
        return bool(seen.all())

    def without(self, message_ids: NDArray[np.int64]) -> Self:
        stays = ~np.isin(self.texts[:, 0], message_ids)
        if stays.all():
            return self
        kept = np.repeat(stays, self.texts[:, 1] + 1)
        order = self.order[kept[self.order]]
        return type(self)(self.texts[stays], (np.cumsum(kept, dtype=np.int32) - 1)[order])

    def to_row(self) -> dict[str, bytes | int]:
        """Encode the order as columns of the table suffix_runs."""
        texts, positions = self.texts.astype(TEXT).tobytes(), self.order.astype(POSITION).tobytes()
        return {"texts": texts, "positions": positions, "checksum": zlib.crc32(positions, zlib.crc32(texts))}

    @classmethod
    def from_row(cls, texts: bytes, positions: bytes, checksum: int) -> Self | None:
        """Decode a row of `to_row`; None if it is damaged."""
        if zlib.crc32(positions, zlib.crc32(texts)) != checksum:
            return None
        if len(texts) % (2 * TEXT.itemsize) or len(positions) % POSITION.itemsize:
            return None
        run = cls(np.frombuffer(texts, TEXT).reshape(-1, 2), np.frombuffer(positions, POSITION))
        return run if run.sound else None


def covered(texts: bytes) -> NDArray[np.int64]:
    """Decode the message ids of a row's `texts`, which may be damaged."""
    return np.frombuffer(texts[: len(texts) // 16 * 16], TEXT)[::2]


def _ids(rows: Iterable[tuple[int]]) -> NDArray[np.int64]:
    return np.array([id for (id,) in rows], np.int64)


def forget_texts(db: Database, user_id: int, conversation_id: int) -> None:
    """Remove a conversation's texts from the stored suffix orders, which reveal them, in its transaction."""
    messages = _ids(db.execute("SELECT id FROM messages WHERE conversation_id = ?", [conversation_id]))
    made_of_them = _ids(
        db.execute(
            "SELECT self_texts.id FROM self_texts JOIN messages ON messages.id = origin_id"
            " WHERE conversation_id = ?",
            [conversation_id],
        )
    )
    for id, kind, *row in db.execute(
        "SELECT id, kind, texts, positions, checksum FROM suffix_runs WHERE user_id = ?", [user_id]
    ).fetchall():
        run = SuffixRun.from_row(*row)
        left = run and run.without(made_of_them if kind == "self" else messages)
        if left is None or not len(left.texts):
            db.execute("DELETE FROM suffix_runs WHERE id = ?", [id])
        elif left is not run:
            db.execute(
                "UPDATE suffix_runs SET texts = :texts, positions = :positions, checksum = :checksum"
                " WHERE id = :id",
                left.to_row() | {"id": id},
            )


TextKind = Literal["written", "asked", "self"]
"""Written by models; asked or edited by the user; generated for itself, with separate numbers instead of messages."""

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
    UNION ALL
    SELECT self_texts.id, ids, x'' AS lead
    FROM self_texts
    LEFT JOIN messages ON messages.id = origin_id
    LEFT JOIN conversations ON conversations.id = conversation_id
    WHERE :kind = 'self' AND self_texts.id > :message AND model_key = :model AND self_texts.user_id = :user
        AND done AND length(ids) > 0 AND hidden_by IS NULL
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
_log = logging.getLogger("hierchat.history")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a user's texts were read: replies up to a message, generated and other texts up to a row."""

    message: int = 0
    tokenised: int = 0


class History(Repository):
    """Stores the texts that draft for a user, as tokens, and the orders of their suffixes."""

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
                "SELECT ifnull(max(id), 0) FROM self_texts"
                if kind == "self"
                else "SELECT coalesce((SELECT min(id) - 1 FROM messages WHERE state = 'writing'), max(id), 0)"
                " FROM messages"
            ).fetchone()
            (tokenised,) = db.execute("SELECT ifnull(max(id), 0) FROM message_tokens").fetchone()
        texts.sort(key=lambda text: text.id)
        return texts, Mark(message, tokenised)

    def ids(self, user_id: int, model_key: str, kind: TextKind) -> set[int]:
        values = _values(user_id, model_key, kind, Mark())
        return {id for (id,) in self._rows(f"SELECT message_id FROM ({_TEXTS})", values)}

    def count_tokens(self, user_id: int, model_key: str) -> int:
        """Count the tokens of all texts that can draft for this model."""
        kinds: tuple[TextKind, TextKind] = ("written", "asked")
        size = f"SELECT ifnull(sum(length(ids)), 0) FROM ({_TEXTS})"
        sizes = [self._rows(size, _values(user_id, model_key, kind, Mark()))[0][0] for kind in kinds]
        return sum(sizes) // TOKEN.itemsize

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

    def suffix_runs(self, user_id: int, model_key: str, kind: TextKind) -> list[SuffixRun]:
        """Return the stored suffix orders. A damaged one is dropped: it is sorted again from the texts."""
        rows = self._rows(
            "SELECT id, texts, positions, checksum FROM suffix_runs"
            " WHERE user_id = ? AND model_key = ? AND kind = ?",
            [user_id, model_key, kind],
        )
        runs = {id: SuffixRun.from_row(*row) for id, *row in rows}
        damaged = [id for id, run in runs.items() if run is None]
        if damaged:
            _log.warning("%d stored parts of the draft index were damaged and are made anew.", len(damaged))
            with self._connection.write() as db:
                db.conn.executemany("DELETE FROM suffix_runs WHERE id = ?", [[id] for id in damaged])
        return [run for run in runs.values() if run is not None]

    def keep_suffix_runs(
        self, user_id: int, model_key: str, kind: TextKind, runs: Sequence[SuffixRun], *, deletions: int
    ) -> bool:
        """Store suffix orders in place of those that cover any of the same texts. `deletions`: see `LearnedValues`."""
        new = np.concatenate([np.empty(0, np.int64), *(run.texts[:, 0] for run in runs)])
        key = {"user_id": user_id, "model_key": model_key, "kind": kind}
        with self._connection.write() as db:
            now = db.execute("SELECT deletions FROM users WHERE id = ?", [user_id]).fetchone()
            if now is None or now[0] != deletions:
                return False
            held = db.execute(
                "SELECT id, texts FROM suffix_runs WHERE user_id = ? AND model_key = ? AND kind = ?",
                [*key.values()],
            ).fetchall()
            for id, texts in held:
                if np.isin(covered(texts), new).any():
                    db.execute("DELETE FROM suffix_runs WHERE id = ?", [id])
            for run in runs:
                db.table("suffix_runs").insert(key | run.to_row())
        return True


def _values(user_id: int, model_key: str, kind: TextKind, since: Mark) -> dict[str, int | str]:
    return {"user": user_id, "model": model_key, "kind": kind, **asdict(since)}


class LearnedValues(Repository):
    """Stores what drafting has learned, and measured costs. It is derived data: losing it costs speed alone."""

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

    def latency(self, model_key: str, machine: str) -> bytes | None:
        """Return the costs that `keep_latency` stored last; None if there are none."""
        stored = "SELECT value FROM latency WHERE model_key = ? AND machine = ?"
        return next((value for (value,) in self._rows(stored, [model_key, machine])), None)

    def keep_latency(self, model_key: str, machine: str, value: bytes) -> None:
        """Store the measured costs of a model's steps on a machine. They tell nothing of what was written."""
        self._run(
            "INSERT OR REPLACE INTO latency (model_key, machine, value, updated_at) VALUES (?, ?, ?, ?)",
            [model_key, machine, value, time.time()],
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

    def add(self, place: str, user_id: int, message_id: int, begun: int = 0) -> tuple[str, str]:
        """Record that the drafter at `place` gets a reply after `begun` tokens; return its names. Raises NotFound."""
        with self._connection.write() as db:
            owned_message(db, user_id, message_id)
            names = (_called(db, user_id), f"m{message_id}-{begun}" if begun else f"m{message_id}")
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
