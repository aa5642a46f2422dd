"""Define what the published drafters share: their contract, and trees out of chains and branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.draft_tree import DraftTree
from hierchat.drafting.proposer import Proposer


class SortedTexts(Protocol):
    """Hold a corpus, as hierchat.texts.build.Statistics does."""

    @property
    def name(self) -> str: ...

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Return the tokens of all texts, a BREAK behind each."""
        ...

    @property
    def order(self) -> NDArray[np.int32]:
        """Return where each token but a BREAK stands, in the order of the suffixes that begin there."""
        ...


class Published(Proposer):
    """Draft in a published way. One object serves an arm's replies one after the other and carries what the method
    keeps between them."""

    def learn(self, reply: Sequence[int]) -> None:
        """Add a finished reply to the history."""

    def forget(self) -> None:
        """Empty the history; the corpus stays."""


def chain(tokens: Sequence[int], source: str, limit: int | None) -> DraftTree:
    """Make a draft tree of one branch."""
    return merged([tokens], [source], limit)


def merged(branches: Iterable[Sequence[int]], sources: Iterable[str], limit: int | None) -> DraftTree:
    """Merge branches into one tree of at most `limit` nodes; a common beginning stands there once."""
    nodes: dict[tuple[int, int], int] = {}
    named: list[str] = []
    for branch, source in zip(branches, sources, strict=True):
        parent = -1
        for token in branch:
            if (parent, token) not in nodes:
                if limit is not None and len(nodes) >= limit:
                    break
                nodes[parent, token] = len(nodes)
                named.append(source)
            parent = nodes[parent, token]
    tokens, parents = [token for _, token in nodes], [parent for parent, _ in nodes]
    return DraftTree(tuple(tokens), tuple(parents), tuple(named), (1.0,) * len(nodes))
