"""What is known of finished replies: figures, sources, tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from sqlite_utils import Database

from hierchat.store.connection import Connected
from hierchat.store.ownership import owned_conversation, owned_message
from hierchat.store.records import (
    LoggedReply,
    NewTurn,
    SourceCount,
    SourceSpan,
    Totals,
    Turn,
    TurnFigures,
    Whereabouts,
)
from hierchat.store.replies import TOKEN
from hierchat.store.spans import SPANS, span_of

# Replies fetched per query of the token log, so that no transaction stays open while the caller works.
_BATCH = 256

_FINISHED = """
    FROM turns
    JOIN token_log USING (message_id)
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE user_id = ? AND state <> 'writing' AND hidden_by IS NULL AND copy_of IS NULL
"""
_LOGGED = f"{_FINISHED} AND model_key = ? AND length(ids) > 0"
_LOG = f"""
    SELECT message_id, conversation_id, ids {_LOGGED} AND message_id > ? ORDER BY message_id LIMIT ?
"""
_WRITTEN = """
    SELECT message_id, ids FROM messages
    JOIN turns ON turns.message_id = messages.id
    JOIN token_log USING (message_id)
    WHERE conversation_id = ? AND model_key = ?
"""
_LAST = f"SELECT message_id {_LOGGED} ORDER BY message_id DESC LIMIT ?"
_TOTALS = f"""
    SELECT
        count(*) AS replies,
        ifnull(sum(tokens), 0) AS tokens,
        sum(tokens) FILTER (WHERE forwards > 0) * 1.0 / sum(forwards) AS tokens_per_forward,
        ifnull(sum(proposed), 0) AS proposed,
        ifnull(sum(accepted), 0) AS accepted
    FROM (SELECT length(ids) / {TOKEN.itemsize} AS tokens, forwards, proposed, accepted {_FINISHED})
"""
_ACCEPTED_BY_SOURCE = f"""
    SELECT each.key AS source, sum(json_extract(each.value, '$.accepted')) AS accepted
    FROM (SELECT sources {_FINISHED}), json_each(sources) AS each
    GROUP BY source ORDER BY accepted DESC, source
"""

_WHEREABOUTS = """
    SELECT messages.id, conversation_id, title, role
    FROM messages
    JOIN conversations ON conversations.id = conversation_id
    WHERE messages.id IN (SELECT value FROM json_each(?)) AND user_id = ? AND hidden_by IS NULL
"""


class Turns(Connected):
    """The part of Store that reads what replies left behind."""

    def turn(self, user_id: int, message_id: int) -> Turn | None:
        """The record of a reply; None for a message that no model wrote here. Raises NotFound."""
        with self._read() as db:
            owned_message(db, user_id, message_id)
            for row in db.query("SELECT * FROM turns WHERE message_id = ?", [message_id]):
                row |= {"settings": json.loads(row["settings"]), "drafted": bool(row["drafted"])}
                return Turn(
                    message_id=message_id,
                    begun=NewTurn(**_only(NewTurn, row)),
                    reply_tokens=len(_tokens(db, message_id)),
                    figures=None if row["sources"] is None else _figures(row),
                )
            return None

    def spans(self, user_id: int, message_id: int) -> list[SourceSpan]:
        """Where the reply's tokens came from, in order and without gaps. Raises NotFound."""
        with self._read() as db:
            owned_message(db, user_id, message_id)
            rows = db.query(f"{SPANS} WHERE message_id = ? ORDER BY start", [message_id])
            return [span_of(row) for row in rows]

    def whereabouts(self, user_id: int, message_ids: Iterable[int]) -> dict[int, Whereabouts]:
        """Where these messages stand; those that are gone, or another user's, are left out."""
        with self._read() as db:
            rows = db.execute(_WHEREABOUTS, [json.dumps(sorted(set(message_ids))), user_id])
            return {id: Whereabouts(*rest) for id, *rest in rows}

    def reply_tokens(self, user_id: int, message_id: int) -> list[int]:
        """The reply's token ids; empty for a message that no model wrote here. Raises NotFound."""
        with self._read() as db:
            owned_message(db, user_id, message_id)
            return _tokens(db, message_id).tolist()

    def tokens_by(self, user_id: int, conversation_id: int, model_key: str) -> dict[int, list[int]]:
        """Return the token ids of every reply that this model wrote in a conversation, by message. Raises NotFound."""
        with self._read() as db:
            owned_conversation(db, user_id, conversation_id)
            rows = db.execute(_WRITTEN, [conversation_id, model_key])
            return {id: np.frombuffer(ids, dtype=TOKEN).tolist() for id, ids in rows}

    def token_log(self, user_id: int, model_key: str, after_message_id: int = 0) -> Iterator[LoggedReply]:
        """Every reply that this model wrote for this user, oldest first, from after `after_message_id` on.

        Interrupted and stopped ones are among them; those still being written, and empty ones, are not.
        """
        while True:
            with self._read() as db:
                batch = db.execute(_LOG, [user_id, model_key, after_message_id, _BATCH]).fetchall()
            for message_id, conversation_id, ids in batch:
                yield LoggedReply(message_id, conversation_id, np.frombuffer(ids, dtype=TOKEN))
            if len(batch) < _BATCH:
                return
            after_message_id = batch[-1][0]

    def last_replies(self, user_id: int, model_key: str, most: int) -> list[int]:
        """The messages that this model wrote last for this user, the newest first, as `token_log` has them."""
        with self._read() as db:
            return [id for (id,) in db.execute(_LAST, [user_id, model_key, most])]

    def totals(self, user_id: int) -> Totals:
        """Sums over all this user's replies that are no longer being written."""
        with self._read() as db:
            (row,) = db.query(_TOTALS, [user_id])
            return Totals(
                **row, accepted_by_source=dict(db.execute(_ACCEPTED_BY_SOURCE, [user_id]).fetchall())
            )


def _tokens(db: Database, message_id: int) -> np.ndarray:
    row = db.execute("SELECT ids FROM token_log WHERE message_id = ?", [message_id]).fetchone()
    return np.frombuffer(row[0] if row else b"", dtype=TOKEN)


def _figures(row: dict[str, Any]) -> TurnFigures:
    sources = {name: SourceCount(**count) for name, count in json.loads(row["sources"]).items()}
    plan = None if row["plan"] is None else tuple((name, length) for name, length in json.loads(row["plan"]))
    return TurnFigures(**_only(TurnFigures, row) | {"sources": sources, "plan": plan})


def _only(record: type, row: dict[str, Any]) -> dict[str, Any]:
    return {field.name: row[field.name] for field in fields(record)}
