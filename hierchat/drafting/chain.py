"""For engines that verify one continuation and no tree: the path of a draft tree that pays best."""

from __future__ import annotations

from hierchat.drafting.cost import DraftCost
from hierchat.drafting.tree import DraftTree


def best_chain(tree: DraftTree, cost: DraftCost, most: int) -> DraftTree:
    """Of all paths from the root of at most `most` nodes the one whose expected tokens are worth most more than its
    rows cost; empty where none pays. The tree must have probabilities."""
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
    path.reverse()
    return DraftTree(
        tuple(tree.tokens[node] for node in path),
        tuple(range(-1, len(path) - 1)),
        tuple(tree.sources[node] for node in path),
        tuple(tree.probabilities[node] for node in path),
        matches=tuple(tree.match(node) for node in path),
    )
