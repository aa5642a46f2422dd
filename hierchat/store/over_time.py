"""How drafting has fared from day to day."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import date
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

from hierchat.store.connection import Connected
from hierchat.store.records import DayFigures, SourceCount
from hierchat.store.replies import TOKEN

_MEASURED = f"""
    SELECT
        date(messages.created_at, 'unixepoch', 'localtime') AS day, length(ids) / {TOKEN.itemsize} AS tokens,
        forwards, proposed, accepted, sources, draft_ms, iif(baseline = 'measured', speedup, NULL) AS speedup
    FROM turns
    JOIN token_log USING (message_id)
    JOIN messages ON messages.id = message_id
    JOIN conversations ON conversations.id = conversation_id
    WHERE user_id = :user AND model_key = ifnull(:model, model_key) AND forwards > 0
        AND hidden_by IS NULL AND copy_of IS NULL AND day > date('now', 'localtime', :before)
    ORDER BY day, message_id
"""


class OverTime(Connected):
    """The part of Store that sums up days."""

    def figures_over_time(
        self, user_id: int, model_key: str | None = None, days: int = 30
    ) -> list[DayFigures]:
        """The last `days` days, today the last of them, oldest first; days without a measured reply are left out.

        `model_key`: of one model's replies; None for all.
        """
        parameters = {"user": user_id, "model": model_key, "before": f"-{days} days"}
        with self._read() as db:
            rows = list(db.query(_MEASURED, parameters))
        return [_summed(day, list(replies)) for day, replies in groupby(rows, itemgetter("day"))]


def _summed(day: str, replies: Sequence[dict[str, Any]]) -> DayFigures:
    proposed, accepted = Counter[str](), Counter[str]()
    for reply in replies:
        for name, count in json.loads(reply["sources"]).items():
            proposed[name] += count["proposed"]
            accepted[name] += count["accepted"]
    tokens = sum(reply["tokens"] for reply in replies)
    speedups = [reply["speedup"] for reply in replies if reply["speedup"] is not None]
    timed = [reply for reply in replies if reply["draft_ms"] is not None]
    return DayFigures(
        day=date.fromisoformat(day),
        replies=len(replies),
        tokens=tokens,
        tokens_per_forward=tokens / sum(reply["forwards"] for reply in replies),
        proposed=sum(reply["proposed"] for reply in replies),
        accepted=sum(reply["accepted"] for reply in replies),
        sources={
            name: SourceCount(proposed[name], accepted[name])
            for name in sorted(proposed, key=lambda name: (-accepted[name], name))
        },
        speedup=median(speedups) if speedups else None,
        draft_ms=(
            sum(reply["draft_ms"] for reply in timed) / sum(reply["forwards"] for reply in timed)
            if timed
            else None
        ),
    )
