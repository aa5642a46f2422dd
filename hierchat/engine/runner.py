"""Define contracts of model runners (weights and kernels) and of sequences: the key-value slots of one text each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.engine.verification import Rows


class CachedSequence(ABC):
    """Keys and values of one text. A segment is `tokens` with `parents`: parents[i] < i, -1 for committed text.
    Equal positions get equal bits in any forward if the runner is exact."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.vocabulary, self.context_length = runner.vocabulary, runner.context_length
        self.tokens: list[int] = []
        """Committed tokens; do not change."""

    @abstractmethod
    def rollback(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""

    @abstractmethod
    def read(self, tokens: Sequence[int], hidden: bool = False) -> NDArray[np.float32] | None:
        """Commit a chunk of the prompt, in a forward without logits; return its hidden states [tokens, hidden] if
        `hidden` and the runner has them, valid until its next forward."""

    @abstractmethod
    def forward(self, tokens: Sequence[int], parents: Sequence[int], *, padded: bool = True) -> Rows:
        """Compute the logits of a segment's nodes; nothing is committed. padded=False: fastest, possibly other bits."""

    @abstractmethod
    def commit(self, nodes: Sequence[int]) -> None:
        """Commit a path of nodes of the last segment, from its root on."""

    @abstractmethod
    def wipe(self) -> None:
        """Overwrite what the slots still hold of texts that were rolled back. No forward may be running."""

    def adopt(self, other: CachedSequence, tokens: Sequence[int]) -> bool:
        """Commit tokens with the keys and values of `other`, which may be of another model of the same shape; return
        whether that was possible. Without tokens it only checks."""
        return False

    def close(self) -> None:
        """Give the slots back; the sequence is not to be used again."""
        self.tokens.clear()


class Segment(NamedTuple):
    """Tokens that one sequence brings into a forward, as a tree."""

    sequence: CachedSequence
    tokens: Sequence[int]
    parents: Sequence[int]
    logits: bool = True
    """False: a piece of a prompt, of which nobody reads logits; they need not be computed."""
    hidden: bool = False
    """Whether hidden states are wanted even without logits; they come where the runner can bring them."""
    embeddings: NDArray[np.float32] | None = None
    """[tokens, hidden]: for draft heads. A CpuRunner's rows begin with them in place of the tokens' own embeddings; a
    CudaRunner's MTP layer joins them, which are states, with these."""


class Runner(ABC):
    """Hold up to `most_sequences` sequences, which take turns or go through a forward together."""

    backend: str
    """What computes it, e.g. blocks, float32, nf4."""
    vocabulary: int
    context_length: int
    """Positions that a sequence can hold."""
    most_sequences: int
    exact: bool = True
    """Whether row invariance was proved when the runner was made."""
    shares_forward: bool = False
    """Whether the segments of several sequences go through one forward; else they take turns."""
    answers_later: bool = False
    """Whether a forward returns while a device still computes: then a reply's last step is shown meanwhile."""
    chunk: int = 128
    """Tokens of a prompt that a forward reads, at most."""
    drafts: bool = True
    """Whether a forward over several rows is one pass; else drafts bring nothing, and none are made."""

    @abstractmethod
    def open(self) -> CachedSequence:
        """Open a new, empty sequence. Raises TooManySequences."""

    def forward(self, segments: Sequence[Segment]) -> list[Rows]:
        """Compute the rows of each segment in one forward over all; only if `shares_forward`."""
        raise NotImplementedError


class TooManySequences(Exception):
    """A runner has no slots for another sequence."""
