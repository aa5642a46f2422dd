"""What replies left behind for the next ones: the history that drafts, and what was learned of acceptance."""

from __future__ import annotations

from dataclasses import dataclass, field

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.source import Source
from hierchat.store import Store


@dataclass(slots=True)
class Held:
    """Of one user and model."""

    source: Source = field(default_factory=Source)
    acceptance: Acceptance = field(default_factory=Acceptance)
    replies: int = 0
    last_message_id: int = 0


class Histories:
    """One history per user and model, kept in step with the store; what was deleted, and all that was learned while it
    was there, is gone at the next reply."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: dict[tuple[int, str], Held] = {}

    def held(self, user_id: int, model_key: str) -> Held:
        """Everything in the token log of this user and model, and nothing else."""
        held = self._held.setdefault((user_id, model_key), Held())
        if self._store.logged_replies(user_id, model_key, held.last_message_id) != held.replies:
            held = self._held[(user_id, model_key)] = Held()
        for reply in self._store.token_log(user_id, model_key, held.last_message_id):
            held.source.add(reply.tokens.tolist())
            held.replies += 1
            held.last_message_id = reply.message_id
        return held
