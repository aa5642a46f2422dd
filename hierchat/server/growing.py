"""The part of a growing text that stands: what may yet turn out to be a mark is held back."""

from __future__ import annotations

from collections.abc import Sequence


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `marks`."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest


class Growing:
    """A text of which more is known each time; `marks` are stop strings, which never come out in part."""

    def __init__(self, marks: Sequence[str] = ()) -> None:
        self._marks = marks
        self.sent = ""

    def more(self, text: str, *, done: bool) -> str:
        """What came since the last call. `done`: the text has come to its end."""
        end = len(text) if done else len(text) - held_back(text, self._marks)
        new = text[len(self.sent) : end]
        self.sent += new
        return new
