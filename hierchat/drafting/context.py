"""The source of highest locality: this conversation, prompt and reply so far."""

from __future__ import annotations

from collections.abc import Sequence

from hierchat.drafting.matches import candidates
from hierchat.drafting.source import Candidate
from hierchat.drafting.suffix_index import SuffixIndex


class ContextSource:
    """Suffix matches in the prompt and the reply so far."""

    name = "context"

    def begin(self, prompt: Sequence[int]) -> None:
        self._index = SuffixIndex()
        self._index.append(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        self._index.append(tokens)

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        return candidates(self._index, context, budget, self.name)
