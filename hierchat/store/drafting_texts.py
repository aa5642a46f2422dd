"""What drafts are made from: the tokens of earlier messages, and the orders of their suffixes. Neither hidden
conversations nor copies of messages that are there are among them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hierchat.store.connection import Connected
from hierchat.store.replies import TOKEN
from hierchat.store.suffix_runs import SuffixRun, covered

TextKind = Literal["written", "asked", "self"]
"""What models wrote, imported replies among it; what the user wrote, edited replies among it; what a model wrote for
itself. Texts of the last kind are named by numbers of their own, all others by their message."""

_LOGGED = """
    FROM turns
    JOIN token_log USING (message_id)
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE :kind = 'written' AND model_key = :model AND message_id > :message
        AND user_id = :user AND state <> 'writing' AND length(ids) > 0 AND hidden_by IS NULL AND copy_of IS NULL
"""
_TOKENISED = """
    FROM message_tokens
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE message_tokens.id > :tokenised AND model_key = :model AND user_id = :user
        AND iif(role = 'user' OR edited, 'asked', 'written') = :kind
        AND length(ids) > 0 AND hidden_by IS NULL
"""
_SELF = """
    FROM self_texts
    LEFT JOIN messages ON messages.id = origin_id
    LEFT JOIN conversations ON conversations.id = conversation_id
    WHERE :kind = 'self' AND self_texts.id > :message AND model_key = :model AND self_texts.user_id = :user
        AND done AND length(ids) > 0 AND hidden_by IS NULL
"""
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
    """How far texts were read: all replies up to a message, for no earlier one is still being written, or all texts
    that a model wrote for itself up to one; and all other texts up to a row of their own table."""

    message: int = 0
    tokenised: int = 0


class DraftingTexts(Connected):
    """The part of Store that drafts are made from."""

    def drafting_texts(
        self, user_id: int, model_key: str, kind: TextKind, since: Mark
    ) -> tuple[list[tuple[int, bytes]], Mark]:
        """Name and tokens (TOKEN) of every text since a mark, and the next mark; some may come again."""
        values = _values(user_id, model_key, kind, since)
        with self._read() as db:
            texts = db.execute(
                f"SELECT message_id, ids {_LOGGED} UNION ALL SELECT message_id, ids {_TOKENISED}"
                f" UNION ALL SELECT self_texts.id, ids {_SELF}",
                values,
            ).fetchall()
            (message,) = db.execute(
                "SELECT ifnull(max(id), 0) FROM self_texts"
                if kind == "self"
                else "SELECT coalesce((SELECT min(id) - 1 FROM messages WHERE state = 'writing'), max(id), 0)"
                " FROM messages"
            ).fetchone()
            (tokenised,) = db.execute("SELECT ifnull(max(id), 0) FROM message_tokens").fetchone()
        texts.sort(key=lambda text: text[0])
        return texts, Mark(message, tokenised)

    def drafting_ids(self, user_id: int, model_key: str, kind: TextKind) -> set[int]:
        """The names of all texts that are there."""
        values = _values(user_id, model_key, kind, Mark())
        with self._read() as db:
            rows = db.execute(
                f"SELECT message_id {_LOGGED} UNION ALL SELECT message_id {_TOKENISED}"
                f" UNION ALL SELECT self_texts.id {_SELF}",
                values,
            )
            return {id for (id,) in rows}

    def drafting_tokens(self, user_id: int, model_key: str) -> int:
        """How many tokens all texts have that can draft for this model."""
        parts = []
        kinds: tuple[TextKind, TextKind] = ("written", "asked")
        with self._read() as db:
            for kind in kinds:
                values = _values(user_id, model_key, kind, Mark())
                for texts in (_LOGGED, _TOKENISED):
                    parts.append(
                        db.execute(f"SELECT ifnull(sum(length(ids)), 0) {texts}", values).fetchone()[0]
                    )
        return sum(parts) // TOKEN.itemsize

    def texts_without_tokens(
        self, user_id: int, model_key: str, after: int, before: int | None, limit: int
    ) -> list[tuple[int, str]]:
        """Message and text of what the user wrote or imported and `keep_tokens` was not told of, oldest first;
        of the messages between two, or to the last."""
        values = {"user": user_id, "model": model_key, "after": after, "before": before, "limit": limit}
        with self._read() as db:
            return list(db.execute(_WITHOUT_TOKENS, values).fetchall())

    def keep_tokens(self, model_key: str, texts: Iterable[tuple[int, Sequence[int]]]) -> None:
        """The tokens of messages that no model wrote here; those that were deleted meanwhile are left out."""
        rows = [(model_key, np.asarray(ids, TOKEN).tobytes(), id) for id, ids in texts]
        with self._write() as db:
            db.conn.executemany(
                "INSERT OR IGNORE INTO message_tokens (message_id, model_key, ids)"
                " SELECT id, ?, ? FROM messages WHERE id = ?",
                rows,
            )

    def suffix_runs(self, user_id: int, model_key: str, kind: TextKind) -> list[SuffixRun]:
        """The orders that were kept. A damaged one is dropped: the texts are there to sort them again."""
        with self._read() as db:
            rows = db.execute(
                "SELECT id, texts, positions, checksum FROM suffix_runs"
                " WHERE user_id = ? AND model_key = ? AND kind = ?",
                [user_id, model_key, kind],
            ).fetchall()
        runs = {id: SuffixRun.from_row(*row) for id, *row in rows}
        damaged = [id for id, run in runs.items() if run is None]
        if damaged:
            _log.warning("%d stored parts of the draft index were damaged and are made anew.", len(damaged))
            with self._write() as db:
                db.conn.executemany("DELETE FROM suffix_runs WHERE id = ?", [[id] for id in damaged])
        return [run for run in runs.values() if run is not None]

    def keep_suffix_runs(
        self, user_id: int, model_key: str, kind: TextKind, runs: Sequence[SuffixRun], *, deletions: int
    ) -> bool:
        """Keep orders in place of those that cover some of the same texts.

        `deletions`: how many there were when the orders were made. Where there have been more since, nothing is
        written, and the answer is False: they may hold traces of what was deleted.
        """
        new = np.concatenate([np.empty(0, np.int64), *(run.texts[:, 0] for run in runs)])
        key = {"user_id": user_id, "model_key": model_key, "kind": kind}
        with self._write() as db:
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
    return {
        "user": user_id,
        "model": model_key,
        "kind": kind,
        "message": since.message,
        "tokenised": since.tokenised,
    }
