"""One question as the chat would hold it: every prompt contains what was said before."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.chat.reply import reply_text
from hierchat.runtime.hosted import Hosted
from hierchat.runtime.prompt import Said


class Dialogue:
    """`room`: tokens that a prompt leaves for its reply, where the context has them."""

    def __init__(self, hosted: Hosted, room: int) -> None:
        self._hosted = hosted
        self._room = room
        self._said: list[Said] = []
        self._opened = False
        """Whether the last prompt ended where the model begins to think."""

    def ask(self, text: str) -> list[int]:
        """The prompt of the next turn. Raises MessageTooLong."""
        self._said.append(Said("user", text))
        prompt = self._hosted.prompts.build(self._said, self._room, self._hosted.end_ids)
        self._opened = prompt.thinking
        return prompt.ids

    def answered(self, reply: Sequence[int]) -> None:
        """What the model wrote."""
        text = reply_text(self._hosted, reply, opened=self._opened)
        self._said.append(Said("assistant", text, tuple(reply)))
