"""How fast each model has written on this machine."""

from __future__ import annotations

from collections import defaultdict

from hierchat.store.connection import Connected
from hierchat.store.replies import TOKEN

LAST = 20
"""Replies of a model that count: what it learned, and the machine, may have changed since earlier ones."""
_REPLIES = f"""
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
            for model, tokens, seconds in db.execute(_REPLIES, [user_id]).fetchall():
                if len(found[model]) < LAST:
                    found[model].append((tokens, seconds))
        return {
            model: (sum(tokens for tokens, _ in each) / sum(seconds for _, seconds in each), len(each))
            for model, each in found.items()
        }
