"""How drafting has fared: by day, by model, altogether."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

from hierchat.store.connection import Connected
from hierchat.store.records import DraftingFigures, HistorySize, OverTimeFigures, SourceCount
from hierchat.store.replies import TOKEN

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
