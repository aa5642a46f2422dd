"""The draft tree: what is verified in one forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Match(NamedTuple):
    """What a draft was found by in the databases."""

    slot: int
    """Of growing.layout; -1: no database drafted it."""
    length: int
    """How many tokens before it matched."""
    database: int
    """The number of the source that holds it, among those that the drafter has; -1: this conversation, or no text."""
    position: int
    """Where the token stands in that source's log, or in this conversation; -1: nowhere, or not looked for."""


NO_MATCH = Match(-1, 0, -1, -1)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes in an order in which parents come first; parents[i] is -1 where node i follows the committed text."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    """Estimated probability that the node and all above it are accepted; never rises along a path."""

    models_ms: float = 0.0
    """Milliseconds that draft models took for it."""

    matches: tuple[Match, ...] = ()
    """Of each node; none at all where no database had a part in the tree."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, nodes: int) -> DraftTree:
        """The first so many nodes."""
        return DraftTree(
            self.tokens[:nodes],
            self.parents[:nodes],
            self.sources[:nodes],
            self.probabilities[:nodes],
            self.models_ms,
            self.matches[:nodes],
        )

    def match(self, node: int) -> Match:
        """What a node was found by."""
        return self.matches[node] if self.matches else NO_MATCH

    def chance(self, node: int) -> float | None:
        """Estimated probability that a node is accepted if its parent is; None where nothing was estimated."""
        if not self.probabilities:
            return None
        parent = self.parents[node]
        above = self.probabilities[parent] if parent >= 0 else 1.0
        return min(self.probabilities[node] / above, 1.0) if above > 0 else 0.0
