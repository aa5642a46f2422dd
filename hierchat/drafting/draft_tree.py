"""The draft tree: what is verified in one forward."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np


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


MEMORY = 6.0
"""Tokens over which the pace is averaged."""


class Latency(Protocol):
    """Costs on this machine, as the engine measures them."""

    def step_ms(self, context: int) -> Sequence[float]:
        """Milliseconds of a step over 1, 2, ... positions behind `context` tokens; never falling. The same object as
        long as nothing changed."""
        ...


class FreeRows:
    """A Latency of rows that are free up to a fixed width."""

    def __init__(self, width: int) -> None:
        self._step_ms = [1.0] * width

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


class DraftCost:
    """Prices of drafts at the present pace: `extra` [n] are the milliseconds that n drafts add to a step, `onward` [n]
    the least that one more can come at. A draft that is accepted less often than onward / token_ms does not pay: a
    token is worth the time that one takes now, so that a draft is worth less within a copy."""

    def __init__(self, latency: Latency) -> None:
        self._latency = latency
        self._table: Sequence[float] = ()
        self._step_ms: Sequence[float] = ()
        self._roots = 1
        self.otherwise_ms = float("inf")
        """What a token costs where something else drafts."""
        self.begin(0)

    def begin(self, context: int) -> None:
        """Begin a reply, at the pace of plain decoding."""
        self.look(context)
        self._start()

    def look(self, context: int, roots: int = 1) -> None:
        """Take the costs behind `context` tokens. `roots`: replies that share the forward, each with a row of its own
        beside its drafts; their pace is that of all together."""
        table = self._latency.step_ms(context)
        if table is self._table and roots == self._roots:
            return
        joined, self._table, self._roots = roots != self._roots, table, roots
        self._step_ms = step_ms = table[min(roots, len(table)) - 1 :]
        self.extra = extra = np.asarray(step_ms) - step_ms[0]
        # The cheapest way on from n drafts: rows may come in groups, of which all but the first are free.
        more = np.arange(1, extra.size)
        self.onward = np.array(
            [((extra[n + 1 :] - extra[n]) / more[: extra.size - 1 - n]).min() for n in range(extra.size - 1)]
        )
        if joined:
            self._start()

    def _start(self) -> None:
        self._ms, self._tokens = self._step_ms[0] * MEMORY, MEMORY * self._roots

    def note(self, width: int, tokens: int) -> None:
        """Note that a step over `width` positions brought `tokens`."""
        keep = (1.0 - 1.0 / (MEMORY * self._roots)) ** tokens
        self._ms = self._ms * keep + self.step_ms(width - self._roots)
        self._tokens = self._tokens * keep + tokens

    @property
    def token_ms(self) -> float:
        return min(self._ms / self._tokens, self._step_ms[0] / self._roots, self.otherwise_ms)

    def step_ms(self, drafts: int) -> float:
        """What a step over so many drafts costs."""
        return self._step_ms[min(drafts, len(self._step_ms) - 1)]

    @property
    def most(self) -> int:
        return self.onward.size


def best_chain(tree: DraftTree, cost: DraftCost, most: int) -> DraftTree:
    """Return the path from the root of at most `most` nodes whose expected tokens are worth most more than its rows
    cost, for engines that verify no trees; empty where none pays. The tree must have probabilities."""
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
    """Return how many nodes of each tree go through a shared forward: those that bring most, as long as the next one
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
