"""Counts what changes in each user's chats, so that a page learns from one number whether it shows the present."""

from __future__ import annotations

import threading


class News:
    """Each user's changes are numbered: over all users, a number would tell how busy others are. Of each user and
    conversation the number of the last one is known."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._messages: dict[tuple[int, int], int] = {}
        self._settings: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()

    def tell(self, user_id: int, conversation_id: int | None = None) -> None:
        """Something in the user's list of chats changed; with a conversation, its messages did, too."""
        with self._lock:
            number = self._counts[user_id] = self._counts.get(user_id, 0) + 1
            if conversation_id is not None:
                self._messages[user_id, conversation_id] = number

    def tell_settings(self, user_id: int, conversation_id: int | None = None) -> int:
        """What that conversation sets changed; without one, the user's presets did. The number of this change."""
        with self._lock:
            number = self._counts[user_id] = self._counts.get(user_id, 0) + 1
            self._settings[user_id, conversation_id or 0] = number
            return number

    def count(self, user_id: int) -> int:
        """The number of the user's last change; 0 where nothing changed since the program began."""
        with self._lock:
            return self._counts.get(user_id, 0)

    def changed(self, user_id: int, conversation_id: int | None) -> int:
        """The number of the change in which the messages of that conversation changed last; 0 where they did not."""
        with self._lock:
            return self._messages.get((user_id, conversation_id or 0), 0)

    def settings_changed(self, user_id: int, conversation_id: int | None = None) -> int:
        """The number of the last change of what that conversation sets, or of the presets; 0 where there was none."""
        with self._lock:
            return self._settings.get((user_id, conversation_id or 0), 0)
