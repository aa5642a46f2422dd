"""What a draft source is: anything that proposes continuations of the committed text. A new source is one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Candidate(NamedTuple):
    """One continuation with the features by which it is judged."""

    tokens: Sequence[int]
    source: str
    match_length: int
    """Tokens of the context that stood before it where it was seen, at least one."""


class DraftSource(Protocol):
    """A database of earlier text. Token ids only; no source knows the target."""

    name: str

    def begin(self, prompt: Sequence[int]) -> None:
        """A new reply starts: `prompt` is all that stands before it."""
        ...

    def observe(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""
        ...

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        """Continuations of `context` of at most `budget` tokens, the newest first; empty when nothing fits."""
        ...
