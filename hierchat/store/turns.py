"""What is known of finished replies: figures, sources, tokens."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import date, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np
from sqlite_utils import Database

from hierchat.store.connection import Connected, owned_conversation, owned_message
from hierchat.store.records import (
    DraftingFigures,
    HistorySize,
    LoggedReply,
    NewTurn,
    OverTimeFigures,
    SourceCount,
    SourceSpan,
    Totals,
    Turn,
    TurnFigures,
    Whereabouts,
)
from hierchat.store.replies import SPANS, TOKEN, span_of

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


# How drafting has fared: by day, by model, altogether.


# CROSS: in this order, so that a user's replies are found in an index that has all that is asked of messages. The text
# of a message stands before its time in the row, and would be read to get there.
_REPLIES = """
    FROM conversations
    CROSS JOIN messages ON messages.conversation_id = conversations.id
    CROSS JOIN turns ON turns.message_id = messages.id
    CROSS JOIN token_log ON token_log.message_id = messages.id
    WHERE user_id = :user AND hidden_by IS NULL AND role = 'assistant' AND copy_of IS NULL
        AND messages.created_at >= :since
"""
MEASURED = f"""
    SELECT
        date(messages.created_at, 'unixepoch', 'localtime') AS day, model_key,
        length(ids) / {TOKEN.itemsize} AS tokens, forwards, proposed, accepted, sources, draft_ms, seconds,
        iif(baseline = 'measured', speedup, NULL) AS speedup
    {_REPLIES} AND forwards > 0 AND finish IS NOT 'loop' AND model_key = ifnull(:model, model_key)
    ORDER BY messages.id
"""
"""A row for each measured reply. What a model repeats for ever drafts itself, and says nothing about other replies."""
WRITERS = f"SELECT model_key, model, max(messages.id) {_REPLIES} GROUP BY model_key ORDER BY model, model_key"
WRITTEN = f"SELECT count(*), ifnull(sum(length(ids)), 0) / {TOKEN.itemsize} {_REPLIES}"
INDEXED = """
    SELECT ifnull(sum(length(texts) + length(positions)), 0) FROM suffix_runs WHERE user_id = :user
"""
_EVER = 0.0

Row = dict[str, Any]


class OverTime(Connected):
    """The part of Store that sums up days."""

    def figures_over_time(
        self, user_id: int, model_key: str | None = None, days: int | None = None
    ) -> OverTimeFigures:
        """The measured replies of the last `days` days, today the last of them; None for all days.

        `model_key`: of one model's replies; None for all.
        """
        parameters = {"user": user_id, "model": model_key, "since": _since(days)}
        with self._read() as db:
            rows = list(db.query(MEASURED, parameters))
        return OverTimeFigures(
            _summed(rows),
            {date.fromisoformat(day): _summed(group) for day, group in _grouped(rows, "day")},
            {key: _summed(group) for key, group in _grouped(rows, "model_key")},
        )

    def models_that_wrote(self, user_id: int) -> dict[str, str]:
        """By key, the name that the model had when it wrote last for this user."""
        with self._read() as db:
            rows = db.execute(WRITERS, {"user": user_id, "since": _EVER})
            return {key: name for key, name, _ in rows}

    def history_size(self, user_id: int) -> HistorySize:
        """How much there is of this user's, and of the file that holds everybody's."""
        sides = (self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm"))
        with self._read() as db:
            replies, tokens = db.execute(WRITTEN, {"user": user_id, "since": _EVER}).fetchone()
            (indexed,) = db.execute(INDEXED, {"user": user_id}).fetchone()
        return HistorySize(
            replies, tokens, indexed, sum(side.stat().st_size for side in sides if side.exists())
        )


def _since(days: int | None) -> float:
    """When the first of so many days began, on this machine's clock."""
    if days is None:
        return _EVER
    first = datetime.now().date() - timedelta(days=days - 1)
    return datetime.combine(first, datetime.min.time()).timestamp()


def _grouped(rows: list[Row], column: str) -> Iterator[tuple[str, list[Row]]]:
    for value, group in groupby(sorted(rows, key=itemgetter(column)), itemgetter(column)):
        yield value, list(group)


def _summed(replies: Sequence[Row]) -> DraftingFigures:
    proposed, accepted = Counter[str](), Counter[str]()
    for reply in replies:
        for name, count in json.loads(reply["sources"]).items():
            proposed[name] += count["proposed"]
            accepted[name] += count["accepted"]
    tokens = sum(reply["tokens"] for reply in replies)
    beside = [reply for reply in replies if reply["speedup"] is not None]
    timed = [reply for reply in replies if reply["draft_ms"] is not None]
    return DraftingFigures(
        replies=len(replies),
        tokens=tokens,
        tokens_per_forward=tokens / sum(reply["forwards"] for reply in replies) if replies else None,
        proposed=sum(reply["proposed"] for reply in replies),
        accepted=sum(reply["accepted"] for reply in replies),
        sources={
            name: SourceCount(proposed[name], accepted[name])
            for name in sorted(proposed, key=lambda name: (-accepted[name], name))
        },
        speedup=median(reply["speedup"] for reply in beside) if beside else None,
        compared=len(beside),
        saved_seconds=sum(reply["seconds"] * (reply["speedup"] - 1) for reply in beside),
        draft_ms=(
            sum(reply["draft_ms"] for reply in timed) / sum(reply["forwards"] for reply in timed)
            if timed
            else None
        ),
    )


# How fast each model has written on this machine.


LAST = 20
"""Replies of a model that count: what it learned, and the machine, may have changed since earlier ones."""
_REPLIES_OF_MODEL = f"""
    SELECT model, length(ids) / {TOKEN.itemsize} AS tokens, seconds
    FROM turns
    JOIN token_log USING (message_id)
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE user_id = ? AND seconds > 0 AND length(ids) >= {16 * TOKEN.itemsize} AND hidden_by IS NULL
        AND copy_of IS NULL
    ORDER BY message_id DESC LIMIT 2000
"""


class ModelSpeeds(Connected):
    """The part of Store that tells how fast models are."""

    def speeds(self, user_id: int) -> dict[str, tuple[float, int]]:
        """By model: tokens a second over its last replies to this user, and how many those were."""
        found = defaultdict[str, list[tuple[int, float]]](list)
        with self._read() as db:
            for model, tokens, seconds in db.execute(_REPLIES_OF_MODEL, [user_id]).fetchall():
                if len(found[model]) < LAST:
                    found[model].append((tokens, seconds))
        return {
            model: (sum(tokens for tokens, _ in each) / sum(seconds for _, seconds in each), len(each))
            for model, each in found.items()
        }
