"""What the engine needs of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.cost import DraftCost
from hierchat.drafting.tree import DraftTree


class Proposer(Protocol):
    """Proposes a tree of drafts for every forward, and gets what was committed."""

    @property
    def top(self) -> int:
        """How many of the target's top tokens `observe` is to get for each position; 0: none."""
        ...

    def begin(self, prompt: Sequence[int]) -> None:
        """A new reply starts after `prompt`."""
        ...

    def propose(self, limit: int | None = None) -> DraftTree:
        """A tree of at most `limit` nodes that continues what was observed."""
        ...

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        """These tokens were committed, in order: drafts that were accepted, and one that the target added.

        `top` [tokens, self.top]: the tokens of the highest raw logits where the target chose each of them, highest
        first, the lower id first among equals, -1 beyond the vocabulary. None where `self.top` is 0.
        """
        ...


@runtime_checkable
class ReadsHidden(Protocol):
    """A proposer that may read the target's hidden states, such as a learned head."""

    @property
    def reads_hidden(self) -> bool: ...

    def see(self, hidden: NDArray[np.float32]) -> None:
        """[tokens, hidden]: what the target's head read where it chose each of the tokens that `observe` gets next;
        valid until then. Not called where the runner does not bring them, nor for the prompt."""
        ...


@runtime_checkable
class Shares(Protocol):
    """A proposer that can draft for a forward that other replies share."""

    def propose_beside(self, cost: DraftCost, limit: int | None = None) -> DraftTree:
        """As `propose`, at the prices of that forward. The tree has probabilities, the highest first."""
        ...

    def cut(self, nodes: int) -> None:
        """Of the tree only the first `nodes` go through the forward."""
        ...
