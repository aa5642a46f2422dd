"""Sum up the replies of a user, and measure each model's speed."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

from hierchat.store.records import DraftingFigures, ModelSpeed, OverTimeFigures, SourceCount
from hierchat.store.replies import FINISHED, TOKEN
from hierchat.store.repository import Repository

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
        date(messages.created_at, 'unixepoch', 'localtime') AS day,
        length(ids) / {TOKEN.itemsize} AS tokens, forwards, sources, seconds,
        iif(baseline = 'measured', speedup, NULL) AS speedup
    {_REPLIES} AND forwards > 0 AND finish IS NOT 'loop'
    ORDER BY messages.id
"""
"""A row for each measured reply. What a model repeats for ever drafts itself, and says nothing about other replies."""

LAST = 20
"""Replies of a model that count: what it learned, and the machine, may have changed since earlier ones."""
_REPLIES_OF_MODEL = f"""
    SELECT model, length(ids) / {TOKEN.itemsize} / seconds, messages.created_at
    {FINISHED} AND seconds > 0 AND length(ids) >= {16 * TOKEN.itemsize} AND finish IS NOT 'loop'
    ORDER BY message_id DESC LIMIT 2000
"""


class ReplyFigures(Repository):
    """Sums up a user's replies by day, and the speed of each model."""

    def over_time(self, user_id: int, days: int) -> OverTimeFigures:
        """Sum up the replies of the last `days` days, today included."""
        # As the first of them began, on this machine's clock.
        first = datetime.now().date() - timedelta(days=days - 1)
        since = datetime.combine(first, datetime.min.time()).timestamp()
        with self._connection.read() as db:
            rows = list(db.query(MEASURED, {"user": user_id, "since": since}))
        by_day = sorted(rows, key=itemgetter("day"))
        return OverTimeFigures(
            _summed(rows),
            {
                date.fromisoformat(day): _summed(list(group))
                for day, group in groupby(by_day, itemgetter("day"))
            },
        )

    def speeds(self, user_id: int) -> dict[str, ModelSpeed]:
        """Return the best speed of each model's last replies to a user."""
        found = defaultdict[str, list[tuple[float, float]]](list)
        for model, per_second, at in self._rows(_REPLIES_OF_MODEL, [user_id]):
            if len(found[model]) < LAST:
                found[model].append((per_second, at))
        best = {model: max(replies) for model, replies in found.items()}
        return {
            model: ModelSpeed(per_second, len(found[model]), at) for model, (per_second, at) in best.items()
        }

    def writers(self) -> set[str]:
        """Return the names of all models that ever wrote here, for whichever user, as far as their replies remain."""
        return {name for (name,) in self._rows("SELECT DISTINCT model FROM turns", [])}


def _summed(replies: Sequence[dict[str, Any]]) -> DraftingFigures:
    proposed, accepted = Counter[str](), Counter[str]()
    for reply in replies:
        for name, count in json.loads(reply["sources"]).items():
            proposed[name] += count["proposed"]
            accepted[name] += count["accepted"]
    tokens = sum(reply["tokens"] for reply in replies)
    beside = [reply for reply in replies if reply["speedup"] is not None]
    return DraftingFigures(
        replies=len(replies),
        tokens=tokens,
        tokens_per_forward=tokens / sum(reply["forwards"] for reply in replies) if replies else None,
        sources={
            name: SourceCount(proposed[name], accepted[name])
            for name in sorted(proposed, key=lambda name: (-accepted[name], name))
        },
        speedup=median(reply["speedup"] for reply in beside) if beside else None,
        compared=len(beside),
        saved_seconds=sum(reply["seconds"] * (reply["speedup"] - 1) for reply in beside),
    )
