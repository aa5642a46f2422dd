"""Counts what changes in each user's chats, so that a page learns from one number whether it shows the present."""

from __future__ import annotations

import threading
from collections import defaultdict


class News:
    """A counter for each user, and the count at which each conversation changed last."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = defaultdict(int)
        self._messages: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def tell(self, user_id: int, conversation_id: int | None = None) -> None:
        """Something in the user's list of chats changed; with a conversation, its messages did, too."""
        with self._lock:
            self._counts[user_id] += 1
            if conversation_id is not None:
                self._messages[user_id, conversation_id] = self._counts[user_id]

    def count(self, user_id: int) -> int:
        """How often something changed since the program began."""
        with self._lock:
            return self._counts[user_id]

    def changed(self, user_id: int, conversation_id: int | None) -> int:
        """The count at which the messages of that conversation changed last; 0 where they did not."""
        with self._lock:
            return self._messages.get((user_id, conversation_id or 0), 0)
