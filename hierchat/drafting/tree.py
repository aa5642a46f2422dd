"""The draft tree: candidates of all sources merged without duplicates, grown best-first by path probability."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from hierchat.drafting.source import Candidate

MIN_PATH_PROBABILITY = 0.1
"""A node is worth its row only when it is accepted about this often: the cost of a further row of a forward over the
cost of a token, on the backends measured so far (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes in an order in which parents come first; parents[i] is -1 where node i follows the committed text."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    """Estimated probability that the node and all above it are accepted; never rises along a path."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class _Node:
    """A trie node: how much speaks for each continuation, and who proposed this one first."""

    source: str = ""
    weight: float = 0.0
    certainty: float = 0.0
    children: dict[int, _Node] = field(default_factory=dict)


def grow(candidates: Iterable[Candidate], budget: int) -> DraftTree:
    """At most `budget` nodes, the likeliest first. Candidates come from the highest to the lowest locality; a token
    that two sources propose belongs to the higher."""
    root = _merge(candidates)
    tokens: list[int] = []
    parents: list[int] = []
    sources: list[str] = []
    probabilities: list[float] = []
    queue: list[tuple[float, int, int, int, _Node]] = []
    order = 0

    def open_children(node: _Node, index: int, path: float) -> None:
        nonlocal order
        total = sum(child.weight for child in node.children.values()) + 0.5
        for token, child in node.children.items():
            chance = path * child.weight / total * child.certainty
            if chance >= MIN_PATH_PROBABILITY:
                heapq.heappush(queue, (-chance, order, index, token, child))
                order += 1

    open_children(root, -1, 1.0)
    while queue and len(tokens) < budget:
        chance, _, parent, token, node = heapq.heappop(queue)
        tokens.append(token)
        parents.append(parent)
        sources.append(node.source)
        probabilities.append(-chance)
        open_children(node, len(tokens) - 1, -chance)
    return DraftTree(tuple(tokens), tuple(parents), tuple(sources), tuple(probabilities))


def _merge(candidates: Iterable[Candidate]) -> _Node:
    root = _Node()
    for candidate in candidates:
        certainty = 1.0 - 0.5**candidate.match_length
        node = root
        for token in candidate.tokens:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node(candidate.source)
            child.weight += candidate.weight
            child.certainty = max(child.certainty, certainty)
            node = child
    return root
