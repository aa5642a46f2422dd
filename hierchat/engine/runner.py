"""Contracts of model runners (weights and kernels) and of their sequences, which hold the key-value slots of one text
each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hierchat.engine.verification import Rows


class CachedSequence(Protocol):
    """Holds the keys and values of one text.

    A segment is `tokens` with `parents`: parents[i] < i is the node that node i follows, -1 what is committed. Equal
    positions get equal bits whatever else is in the forward where `exact` is true.
    """

    @property
    def runner(self) -> Runner: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def context_length(self) -> int:
        """Positions that it can hold."""
        ...

    @property
    def exact(self) -> bool:
        """Whether row invariance was proved when the runner was made."""
        ...

    @property
    def tokens(self) -> list[int]:
        """Committed tokens; do not change."""
        ...

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        ...

    def read(self, tokens: Sequence[int]) -> None:
        """Commit a chunk of the prompt, in a forward without logits."""
        ...

    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        """Compute the logits of every node of a segment, of this sequence alone; nothing is committed. padded=False:
        fastest, maybe other bits."""
        ...

    def commit(self, nodes: Sequence[int]) -> None:
        """Commit a path of nodes of the last segment, from its root on."""
        ...

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        """Commit tokens without a forward, with the keys and values that `other` holds for them, which may be of
        another model of the same shape. False where that cannot be done; nothing has changed then. With no tokens it
        only tells whether it could."""
        ...

    def close(self) -> None:
        """Give the slots back; do not use the sequence again."""
        ...


class Segment(NamedTuple):
    """What one sequence brings into a forward."""

    sequence: CachedSequence
    tokens: Sequence[int]
    parents: Sequence[int]
    logits: bool = True
    """False: a piece of a prompt, of which nobody reads the rows; they need not be computed."""


class Runner(Protocol):
    """Holds up to `most_sequences` sequences, which take turns or go through a forward together."""

    backend: str
    """What computes it, e.g. blocks, float32, nf4."""
    vocabulary: int
    context_length: int
    """Positions that a sequence can hold."""
    exact: bool
    shares_forward: bool
    """Whether the segments of several sequences go through one forward; else they take turns."""
    drafts: bool
    """Whether a forward over several rows is one pass; else drafts bring nothing, and none are made."""

    @property
    def most_sequences(self) -> int: ...

    def open(self) -> CachedSequence:
        """Open a new, empty sequence. Raises TooManySequences."""
        ...

    def forward(self, segments: Sequence[Segment], *, padded: bool = True) -> list[Rows]:
        """Compute the rows of each segment: in one forward over all where rows are exact then, else one by one."""
        ...


class TooManySequences(Exception):
    """A runner has no slots for another sequence."""


def in_turn(segments: Sequence[Segment], *, padded: bool = True) -> list[Rows]:
    """Implement Runner.forward for a runner that computes one sequence at a time."""
    found = []
    for segment in segments:
        rows = segment.sequence.forward(segment.tokens, segment.parents, padded=padded)
        found.append(rows.kept() if len(segments) > 1 else rows)  # the next forward uses the same memory
    return found


class KeyValueSlots(Protocol):
    """Keys and values of one text."""

    def rollback(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        ...

    def commit(self, nodes: list[int]) -> None:
        """Keep these nodes of the last segment, in this order."""
        ...


class SlottedSequence:
    """The part of a CachedSequence that needs no forward, for models of transformers on any device. A forward notes its
    tokens in `segment`."""

    def __init__(self, runner: Runner, slots: KeyValueSlots) -> None:
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
