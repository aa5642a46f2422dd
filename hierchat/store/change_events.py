"""Number the changes of each user's chats."""

import threading
from collections.abc import Callable

ALL_CHATS = 0
"""In place of a conversation: every one of the user's."""


class ChangeEvents:
    """Numbers each user's changes, and each conversation's last one, so that a page sees if it is up to date."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._last: dict[tuple[int, str, int | None], int] = {}  # by user, kind and conversation
        self._lock = threading.Lock()
        self.listeners: list[Callable[[int], None]] = []
        """Called with a user's id after each change, and as their replies grow."""

    def wake(self, user_id: int) -> None:
        """Tell listeners that there is something new to show."""
        for listener in self.listeners:
            listener(user_id)

    def notify(self, user_id: int, conversation_id: int | None = None) -> None:
        """Note a change of the user's list of chats; with a conversation, of its messages, too."""
        self._note(user_id, "messages", conversation_id)

    def notify_settings(self, user_id: int, conversation_id: int | None = None) -> int:
        """Note a change of a conversation's settings; without one, of the user's presets. Returns its number."""
        return self._note(user_id, "settings", conversation_id)

    def _note(self, user_id: int, kind: str, conversation_id: int | None) -> int:
        with self._lock:
            number = self._counts[user_id] = self._counts.get(user_id, 0) + 1
            self._last[user_id, kind, conversation_id] = number
        self.wake(user_id)
        return number

    def count(self, user_id: int) -> int:
        """Return the number of the user's last change; 0 if nothing changed since the program began."""
        return self._counts.get(user_id, 0)

    def changed(self, user_id: int, conversation_id: int | None) -> int:
        """Return the number of the last change of that conversation's messages; 0 if there was none."""
        return max(
            self._last.get((user_id, "messages", one or ALL_CHATS), 0) for one in (conversation_id, ALL_CHATS)
        )

    def settings_changed(self, user_id: int, conversation_id: int | None = None) -> int:
        """Return the number of the last change of that conversation's settings, or of the presets; 0 if none."""
        return self._last.get((user_id, "settings", conversation_id), 0)
