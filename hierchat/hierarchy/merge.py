"""The target's tree: the draft of the highest draft model, with branches of the databases' tree beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.tree import DraftTree


def merge(
    chain: DraftTree,
    tree: DraftTree,
    accepted: float,
    onward_ms: Sequence[float] | NDArray[np.float64],
    token_ms: float,
    limit: int,
) -> DraftTree:
    """The chain, and branches of the tree that pay for their row. Each token of the chain is accepted with probability
    `accepted`. `onward_ms` [n]: what one more row costs behind n drafts. `token_ms`: what a token is worth."""
    tokens, parents, sources = [*chain.tokens], [*chain.parents], [*chain.sources]
    matches = [chain.match(node) for node in range(len(chain))]
    chances = [accepted ** (depth + 1) for depth in range(len(chain))]
    places = {-1: -1}  # of the tree's nodes in the merged tree; a branch's only if it was taken
    estimates = {-1: 1.0}  # the tree's own chances of its nodes on the chain
    onward = dict(zip(chain.parents, chain.tokens, strict=True))
    scales: dict[int, float] = {}  # from the tree's chances to ours, for nodes of branches
    on_chain = {
        node
        for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
        if _is_on_chain(node, parent, token, onward, places, estimates, tree.probabilities[node])
    }
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        if node in on_chain or parent not in places or len(tokens) >= limit:
            continue
        at = places[parent]
        scale = scales.get(parent)
        if scale is None:  # the branch begins here, beside the chain's next token
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


def _is_on_chain(
    node: int,
    parent: int,
    token: int,
    onward: dict[int, int],
    places: dict[int, int],
    estimates: dict[int, float],
    estimate: float,
) -> bool:
    """Whether the chain has this node, too; then its place there is noted."""
    if parent not in places or onward.get(places[parent]) != token:
        return False
    places[node] = places[parent] + 1
    estimates[node] = estimate
    return True
