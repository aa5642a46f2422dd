"""Define the draft tree, which is verified in one forward, and the ways to cut, merge and divide such trees."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.draft_cost import DraftCost

DOCUMENTS = "documents"
"""The source of drafts from passages of documents, whether the prompt or a database holds them."""


class Match(NamedTuple):
    """Match by which a draft was found in the databases."""

    slot: int
    """Slot of growing.kernel_arrays; -1: no database drafted it."""
    length: int
    """How many tokens before it matched."""
    database: int
    """The number of the source that holds it, among those that the drafter has; -1: this conversation, or no text."""
    position: int
    """Position of the token in that source's log, or in this conversation; -1 if there is none, or nobody looked."""


NO_MATCH = Match(-1, 0, -1, -1)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes of drafts, in an order with parents first; parents[i] is -1 if node i follows committed text."""

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

    def links(self) -> dict[tuple[int, int], int]:
        """Return the node of each (parent, token); the first one of several."""
        found: dict[tuple[int, int], int] = {}
        for node, link in enumerate(zip(self.parents, self.tokens, strict=True)):
            found.setdefault(link, node)
        return found

    def path(self, tokens: Sequence[int]) -> list[int]:
        """Return the nodes of the longest path from the root that `tokens` begin with."""
        links, path = self.links(), list[int]()
        for token in tokens:
            if (node := links.get((path[-1] if path else -1, token))) is None:
                break
            path.append(node)
        return path

    def cut(self, nodes: int) -> DraftTree:
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
        return self.matches[node] if self.matches else NO_MATCH

    def chance(self, node: int) -> float | None:
        """Estimate the probability that a node is accepted if its parent is; None if nothing was estimated."""
        if not self.probabilities:
            return None
        parent = self.parents[node]
        above = self.probabilities[parent] if parent >= 0 else 1.0
        return min(self.probabilities[node] / above, 1.0) if above > 0 else 0.0


def _joined(trees: Sequence[DraftTree]) -> tuple[dict[tuple[int, int], int], list[dict[int, int]]]:
    """Join trees without doubles. Return the links, (parent, token) -> node, and per tree a map from joint to own
    nodes."""
    links: dict[tuple[int, int], int] = {}
    own: list[dict[int, int]] = []
    for tree in trees:
        joint, nodes = {-1: -1}, {-1: -1}
        for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
            at = joint[node] = links.setdefault((joint[parent], token), len(links))
            if at not in nodes or tree.probabilities[node] > tree.probabilities[nodes[at]]:
                nodes[at] = node
        own.append(nodes)
    return links, own


def judged(
    first: DraftTree,
    other: DraftTree,
    probability: Callable[[int, int], float | None],
    blended: Callable[[float | None, float], float],
) -> tuple[dict[int, list[tuple[int, int, float | None, float]]], DraftTree, float]:
    """Join the databases' tree and a model's, each node with the chance that both together give it. `probability`:
    the model's for a token after a node; `blended` combines it with the databases'. Return, per node that the model
    expanded, its drafts (node, token, databases' probability or None, model's); the tree; expected tokens."""
    links, own = _joined([first, other])
    places: dict[int, list[tuple[int, int, float | None, float]]] = {}
    chances: list[float] = []
    for (parent, token), node in links.items():
        database = first.chance(own[0][node]) if node in own[0] else None
        model = probability(own[1][parent], token) if parent in own[1] else None
        if model is None:
            chance = database or 0.0
        else:
            chance = blended(database, model)
            places.setdefault(parent, []).append((node, token, database, model))
        chances.append(chance * (chances[parent] if parent >= 0 else 1.0))
    parents, tokens = zip(*links, strict=True) if links else ((), ())
    sources = tuple(
        first.sources[own[0][at]] if at in own[0] else other.sources[own[1][at]] for at in range(len(links))
    )
    matches = tuple(first.match(own[0][at]) if at in own[0] else NO_MATCH for at in range(len(links)))
    alone = sum(chances[at] for at in own[0] if at >= 0)
    return places, DraftTree(tokens, parents, sources, tuple(chances), matches=matches), alone


def pruned(tree: DraftTree, onward_ms: NDArray[np.float64], token_ms: float, most: int) -> DraftTree:
    """Keep the nodes that pay for their row, at most `most`, likeliest first; see `merge`."""
    # A node is never likelier than its parent and comes after it, so parents come first.
    order = sorted(range(len(tree)), key=lambda node: -tree.probabilities[node])[:most]
    for drafts, node in enumerate(order):
        if tree.probabilities[node] * token_ms <= onward_ms[drafts]:
            order = order[:drafts]
            break
    return tree.select(order)


def merge(
    trees: Sequence[DraftTree], onward_ms: NDArray[np.float64], token_ms: float, most: int
) -> DraftTree:
    """Merge the nodes of all trees that pay for their row, at most `most`, likeliest first.
    `onward_ms` [n]: cost of one more row after n drafts. `token_ms`: value of a token."""
    links, own = _joined(trees)
    best: list[tuple[DraftTree, int]] = []
    for node in range(len(links)):
        owners = [(tree, nodes[node]) for tree, nodes in zip(trees, own, strict=True) if node in nodes]
        best.append(max(owners, key=lambda one: one[0].probabilities[one[1]]))
    parents, tokens = zip(*links, strict=True) if links else ((), ())
    tree = DraftTree(
        tokens,
        parents,
        tuple(tree.sources[node] for tree, node in best),
        tuple(tree.probabilities[node] for tree, node in best),
        matches=tuple(tree.match(node) for tree, node in best),
    )
    return pruned(tree, onward_ms, token_ms, most)


def with_branches(
    chain: DraftTree,
    tree: DraftTree,
    accepted: float,
    onward_ms: Sequence[float] | NDArray[np.float64],
    token_ms: float,
    limit: int,
) -> DraftTree:
    """Add branches of the databases' tree to a draft model's chain if they pay; a chain's token counts `accepted`.
    `onward_ms` [n]: cost of one more row after n drafts. `token_ms`: value of a token."""
    tokens, parents, sources = [*chain.tokens], [*chain.parents], [*chain.sources]
    matches = [chain.match(node) for node in range(len(chain))]
    chances = [accepted ** (depth + 1) for depth in range(len(chain))]
    places = {-1: -1}  # of the tree's nodes in the merged tree; a branch's only if it was taken
    estimates = {-1: 1.0}  # the tree's own chances of its nodes on the chain
    onward = dict(zip(chain.parents, chain.tokens, strict=True))
    scales: dict[int, float] = {}  # from the tree's chances to ours, for nodes of branches
    on_chain = set[int]()
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if parent in places and onward.get(places[parent]) == token:
            places[node] = places[parent] + 1
            estimates[node] = tree.probabilities[node]
            on_chain.add(node)
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if node in on_chain or parent not in places or len(tokens) >= limit:
            continue
        at = places[parent]
        scale = scales.get(parent)
        if scale is None:  # the branch starts at this node, as an alternative to the chain's next token
            continued = next((estimates[n] for n in on_chain if tree.parents[n] == parent), 0.0)
            reached, wrong = (chances[at] if at >= 0 else 1.0), 1.0 - accepted if at + 1 < len(chain) else 1.0
            scale = reached * wrong / max(estimates[parent] - continued, tree.probabilities[node])
        chance = scale * tree.probabilities[node]
        cost = onward_ms[min(len(tokens), len(onward_ms) - 1)]
        if chance * token_ms <= cost:
            continue
        scales[node] = scale
        places[node] = len(tokens)
        tokens.append(token)
        parents.append(at)
        sources.append(tree.sources[node])
        chances.append(chance)
        matches.append(tree.match(node))
    return DraftTree(
        tuple(tokens), tuple(parents), tuple(sources), tuple(chances), chain.models_ms, tuple(matches)
    )


def best_chain(tree: DraftTree, cost: DraftCost, most: int) -> DraftTree:
    """Return the path of at most `most` nodes with the best gain over its rows; empty if none pays."""
    gains: list[float] = []
    depths: list[int] = []
    best, at = 0.0, -1
    most, worth = min(most, cost.most), cost.token_ms
    for node, (parent, chance) in enumerate(zip(tree.parents, tree.probabilities, strict=True)):
        gains.append(chance + (gains[parent] if parent >= 0 else 0.0))
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
        if depths[node] > most:
            continue
        profit = gains[node] * worth - float(cost.extra[depths[node]])
        if profit > best:
            best, at = profit, node
    path: list[int] = []
    while at >= 0:
        path.append(at)
        at = tree.parents[at]
    return tree.select(path[::-1])


def divided(trees: Sequence[DraftTree], cost: DraftCost) -> list[int]:
    """Return how many nodes of each tree go through a shared forward: the likeliest that pay for their row."""
    kept = [0 if tree.probabilities else min(len(tree), cost.most // len(trees)) for tree in trees]
    rows = sum(kept)
    following = [(-tree.probabilities[0], at) for at, tree in enumerate(trees) if tree.probabilities]
    heapq.heapify(following)
    worth, total, best, found = cost.token_ms, 0.0, 0.0, list(kept)
    while following and rows < cost.most:
        chance, at = heapq.heappop(following)
        if -chance * worth <= cost.onward[rows]:
            break
        kept[at] += 1
        rows += 1
        total -= chance
        if (profit := total - cost.extra[rows] / worth) > best:
            best, found = profit, list(kept)
        if kept[at] < len(trees[at]):
            heapq.heappush(following, (-trees[at].probabilities[kept[at]], at))
    return found
