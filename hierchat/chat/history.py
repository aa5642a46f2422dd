"""The user's history as a draft source, kept in step with the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from hierchat.drafting.history import HistorySource
from hierchat.store import Store


@dataclass(slots=True)
class _Held:
    source: HistorySource = field(default_factory=HistorySource)
    replies: int = 0
    last_message_id: int = 0


class Histories:
    """One history source per user and model; what was deleted is gone from it at the next reply."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[int, str], _Held] = {}

    def source(self, user_id: int, model_key: str) -> HistorySource:
        """Everything in the token log of this user and model, and nothing else."""
        held = self._held.setdefault((user_id, model_key), _Held())
        if self._store.logged_replies(user_id, model_key, held.last_message_id) != held.replies:
            held = self._held[(user_id, model_key)] = _Held()
        for reply in self._store.token_log(user_id, model_key, held.last_message_id):
            held.source.add(reply.tokens.tolist())
            held.replies += 1
            held.last_message_id = reply.message_id
        return held.source
