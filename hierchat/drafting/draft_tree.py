"""The draft tree: what is verified in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Match(NamedTuple):
    """What a draft was found by in the databases."""

    slot: int
    """Slot of growing.kernel_arrays; -1: no database drafted it."""
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
    """Match of each node, or an empty tuple if no database contributed."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, nodes: int) -> DraftTree:
        """Return the tree of the first so many nodes."""
        return DraftTree(
            self.tokens[:nodes],
            self.parents[:nodes],
            self.sources[:nodes],
            self.probabilities[:nodes],
            self.models_ms,
            self.matches[:nodes],
        )

    def select(self, nodes: Sequence[int]) -> DraftTree:
        """Return the tree of these nodes, parents first; it must have probabilities."""
        places = {-1: -1} | {node: place for place, node in enumerate(nodes)}
        return DraftTree(
            tuple(self.tokens[node] for node in nodes),
            tuple(places[self.parents[node]] for node in nodes),
            tuple(self.sources[node] for node in nodes),
            tuple(self.probabilities[node] for node in nodes),
            matches=tuple(self.match(node) for node in nodes),
        )

    def match(self, node: int) -> Match:
        """Return what a node was found by."""
        return self.matches[node] if self.matches else NO_MATCH

    def chance(self, node: int) -> float | None:
        """Estimate the probability that a node is accepted if its parent is; None where nothing was estimated."""
        if not self.probabilities:
            return None
        parent = self.parents[node]
        above = self.probabilities[parent] if parent >= 0 else 1.0
        return min(self.probabilities[node] / above, 1.0) if above > 0 else 0.0
