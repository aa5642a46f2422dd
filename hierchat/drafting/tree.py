"""The draft tree: grown best-first by path probability, as large as pays."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from hierchat.drafting.acceptance import Acceptance, Choice
from hierchat.drafting.price import Price
from hierchat.drafting.source import Candidate


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
class Grown:
    """A tree with all that was considered for it, to learn from."""

    tree: DraftTree = field(default_factory=DraftTree)
    considered: list[list[Choice]] = field(default_factory=list)
    """What may follow the committed text [0] and each node i that was looked beyond [i + 1], drafted or not."""

    def teach(self, acceptance: Acceptance, tokens: Sequence[int]) -> None:
        """`tokens` followed the committed text."""
        children = {
            pair: node for node, pair in enumerate(zip(self.tree.parents, self.tree.tokens, strict=True))
        }
        node: int | None = -1
        for token in tokens:
            if node is None or node + 1 >= len(self.considered):
                return
            acceptance.learn(self.considered[node + 1], token, first=node < 0)
            node = children.get((node, token))


def grow(candidates: Sequence[Candidate], acceptance: Acceptance, price: Price, limit: int) -> Grown:
    """The tree of at most `limit` nodes that brings most beyond its price; an empty one is a usual result."""
    chosen: list[Choice] = []
    parents: list[int] = []
    paths: list[float] = []
    considered: list[list[Choice]] = []
    queue: list[tuple[float, int, int, int, Choice]] = []
    order = size = 0
    sum_of_paths = best = 0.0
    parent, depth, path, following = -1, 0, 1.0, candidates
    while True:
        considered.append(acceptance.judge(following, depth))
        for choice in considered[-1]:
            heapq.heappush(queue, (-path * choice.chance, order, parent, depth, choice))
            order += 1
        if not queue or len(chosen) >= limit:
            break
        negative, _, above, depth, choice = heapq.heappop(queue)
        path = -negative
        if path <= price.least(len(chosen)):
            break
        parent, depth, following = len(chosen), depth + 1, choice.candidates
        chosen.append(choice)
        parents.append(above)
        paths.append(path)
        sum_of_paths += path
        profit = sum_of_paths - price.of(len(chosen))
        if profit > best:
            best, size = profit, len(chosen)
    tree = DraftTree(
        tuple([choice.token for choice in chosen[:size]]),
        tuple(parents[:size]),
        tuple([choice.source for choice in chosen[:size]]),
        tuple(paths[:size]),
    )
    return Grown(tree, considered)
