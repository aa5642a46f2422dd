"""The model-generated database: everything that this model wrote for this user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hierchat.drafting.matches import candidates
from hierchat.drafting.source import Candidate
from hierchat.drafting.suffix_index import BREAK, SuffixIndex


class HistorySource:
    """Suffix matches in earlier replies, which the caller brings from the store's token log.

    Derived data: after a conversation is deleted, make a new one. The reply being written is the context source's.
    """

    name = "history"

    def __init__(self, replies: Iterable[Sequence[int]] = ()) -> None:
        self._index = SuffixIndex()
        for reply in replies:
            self.add(reply)

    def __len__(self) -> int:
        """Tokens held, separators included."""
        return len(self._index)

    def add(self, reply: Sequence[int]) -> None:
        """A reply is finished."""
        self._index.append(reply)
        self._index.append((BREAK,))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        return candidates(self._index, context, budget, self.name)
