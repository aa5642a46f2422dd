"""How the rows of one forward are divided among the replies that share it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hierchat.drafting.cost import DraftCost
from hierchat.drafting.tree import DraftTree


def divided(trees: Sequence[DraftTree], cost: DraftCost) -> list[int]:
    """How many nodes of each tree go through a forward that all share: those that bring most, as long as the next one
    pays for its row. A tree without probabilities stays whole."""
    kept = [0 if tree.probabilities else len(tree) for tree in trees]
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
