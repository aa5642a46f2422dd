"""When a reply ends: end-of-text token, stop string, a loop or the token limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hierchat.config import GenerationSettings
from hierchat.engine.loops import is_looping
from hierchat.engine.step import Finish

TAIL = 8
"""Tokens decoded beyond the longest stop string, since a character may span several."""


class Stopping:
    """Watches one reply. `decode` turns token ids into text."""

    def __init__(
        self,
        settings: GenerationSettings,
        end_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
        begun: Sequence[int] = (),
    ) -> None:
        """`begun`: the reply so far, where it is continued."""
        self._settings = settings
        self._end_ids = frozenset(end_ids)
        self._decode = decode
        self._tail = max((len(string) for string in settings.stop), default=0) + TAIL
        self._reply = list(begun)

    def add(self, token: int) -> Finish | None:
        """Add a token to the reply. Returns why the reply ends with it, or None."""
        self._reply.append(token)
        if token in self._end_ids:
            return "end"
        if self._settings.stop:
            text = self._decode(self._reply[-self._tail :])
            if any(string in text for string in self._settings.stop):
                return "stop"
        if self._settings.end_loops and is_looping(self._reply):
            return "loop"
        if len(self._reply) >= self._settings.max_new_tokens:
            return "length"
        return None
