"""What sequences of transformers models share, on any device: tokens, and slots that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hierchat.engine.runner import CachedSequence, Runner


class Slots(Protocol):
    """Keys and values of one text."""

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        ...

    def commit(self, nodes: list[int]) -> None:
        """Keep these nodes of the last segment, in this order."""
        ...


class SlottedSequence:
    """The part of a CachedSequence that needs no forward; who computes one notes its tokens in `segment`."""

    def __init__(self, runner: Runner, slots: Slots) -> None:
        self.runner = runner
        self.slots = slots
        self.vocabulary = runner.vocabulary
        self.context_length = runner.context_length
        self.tokens: list[int] = []
        self.segment: Sequence[int] = ()

    @property
    def exact(self) -> bool:
        return self.runner.exact

    def rollback(self, length: int) -> None:
        self.slots.rollback(length)
        del self.tokens[length:]

    def commit(self, nodes: Sequence[int]) -> None:
        self.slots.commit(list(nodes))
        self.tokens.extend(self.segment[node] for node in nodes)

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        return False

    def close(self) -> None:
        self.tokens.clear()
