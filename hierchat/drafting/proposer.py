"""Propose drafts: the contract of proposers with the engine, and several proposers as one."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.draft_cost import DraftCost
from hierchat.drafting.draft_tree import DraftTree, judged, merge, pruned
from hierchat.drafting.payoff import RATE, Payoff

log = logging.getLogger(__name__)


PROMPT_STATES = 64
"""Number of final prompt tokens whose hidden states are passed to `Proposer.see`."""

DraftCoroutine = Generator[Any, Any, DraftTree]
"""Coroutine that drafts for one reply: yields each HeadForward that it needs, is sent HeadRows, returns the tree."""


class Proposer(ABC):
    """Base class of drafters: proposes a tree before every forward, and observes the tokens committed after it.
    A subclass needs only `propose`."""

    top: int = 0
    """Number of the target's top tokens that `observe` gets for each position; 0 if it needs none."""
    reads_hidden: bool = False
    """Whether `see` gets the target's hidden states."""
    shares_forwards: bool = False
    """Whether `drafting` yields forwards that replies of a batch share. Other secondary proposers rest in a batch."""
    blend: Blend | None = None
    """Weights that combine its estimates with those of the databases; None if `probability` estimates nothing."""
    payoffs: Payoffs | None = None
    """Cost and gain of earlier replies, as a secondary proposer; None to measure them anew in each reply."""

    def begin(self, prompt: Sequence[int]) -> None:  # noqa: B027
        """Begin a new reply after `prompt`."""

    @abstractmethod
    def propose(self, limit: int | None = None) -> DraftTree:
        """Return a tree of at most `limit` nodes that continues the observed text."""

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:  # noqa: B027
        """Observe committed tokens, in order; after steps without a proposal several steps' tokens, with `top` None.
        `top` [tokens, self.top]: tokens with the highest raw logits at each position, the lower id first among
        equals, -1 beyond the vocabulary. None if `self.top` is 0."""

    def see(self, hidden: NDArray[np.float32], position: int) -> None:  # noqa: B027
        """Read hidden states [tokens, hidden] after the last norm, of the tokens from `position` on; valid until
        `observe`. Before `begin` they are of the prompt's last PROMPT_STATES tokens, except cached ones. Some runners
        never call it."""

    def propose_beside(self, cost: DraftCost, limit: int | None = None) -> DraftTree:
        """Propose drafts for a batched forward, at its prices; probabilities in the tree fall from node to node."""
        return self.propose(limit)

    def drafting(self, cost: DraftCost, limit: int | None = None) -> DraftCoroutine:
        """Propose as `propose_beside` does, by a coroutine that yields its own forwards."""
        return self.propose_beside(cost, limit)
        yield  # makes it a generator

    def cut(self, nodes: int) -> None:  # noqa: B027
        """Note that only the first `nodes` of the latest tree go through the forward."""

    def probability(self, node: int, token: int) -> float | None:
        """Return the probability of a token after a node of the latest tree, -1 for the root; None if unknown."""
        return None


def drafted(drafting: Sequence[DraftCoroutine]) -> list[DraftTree]:
    """Run the drafting of several replies, which share forwards of one head, and return the tree of each."""
    trees = [DraftTree()] * len(drafting)
    answers: dict[int, Any] = dict.fromkeys(range(len(drafting)))
    wanted: dict[int, Any] = {}
    while answers:
        for number, answer in answers.items():
            one = drafting[number]
            try:
                wanted[number] = one.throw(answer) if isinstance(answer, Exception) else one.send(answer)
            except StopIteration as end:
                trees[number] = end.value
        answers = {}
        for head in {id(one.head): one.head for one in wanted.values()}.values():
            mine = {number: one for number, one in wanted.items() if one.head is head}
            try:
                answers |= zip(mine, head.forward(list(mine.values())), strict=False)
            except Exception as error:
                answers |= dict.fromkeys(mine, error)
        for number in answers:
            del wanted[number]
    return trees


@dataclass(slots=True)
class Blend:
    """Estimates how likely a draft is accepted, from the databases and a model, by an online logistic regression."""

    both: NDArray[np.float64] = field(default_factory=lambda: np.array([0.9, 0.85, 0.38]))
    """Weights of three inputs where both propose a draft: 1, the log odds by the databases and those by the model."""
    alone: NDArray[np.float64] = field(default_factory=lambda: np.array([-0.5, 0.83]))
    """Weights of two inputs where the databases do not propose it: 1, and the log odds by the model."""

    def chance(self, database: float | None, model: float) -> float:
        """Return the chance of a draft whose parent is accepted."""
        weights, inputs = self._inputs(database, model)
        return 1.0 / (1.0 + math.exp(-float(weights @ inputs)))

    def learn(self, database: float | None, model: float, right: bool) -> None:
        """Learn whether a draft was what the target chose."""
        error = float(right) - self.chance(database, model)
        weights, inputs = self._inputs(database, model)
        weights += BLEND_RATE * error * inputs

    def _inputs(
        self, database: float | None, model: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if database is None:
            return self.alone, np.array([1.0, logit(model)])
        return self.both, np.array([1.0, logit(database), logit(model)])


BLEND_RATE = 0.005


def logit(probability: float) -> float:
    """Return the log odds of a probability, kept within bounds."""
    p = min(max(probability, 1e-3), 0.999)
    return math.log(p / (1.0 - p))


ENTRY_POINTS = "hierchat.proposers"
"""Group of entry points under which other packages name what makes a Proposer for each reply, such as its class."""


def installed_proposers() -> tuple[Callable[[], Proposer], ...]:
    """Return the proposers of other packages that are installed; one that cannot be imported is left out and logged."""
    found: list[Callable[[], Proposer]] = []
    for point in entry_points(group=ENTRY_POINTS):
        try:
            found.append(point.load())
        except Exception as error:
            log.warning("the proposer %s cannot be imported: %s", point.name, error)
    return tuple(found)


BELIEVED = 8
"""Steps for which what is expected of a proposer counts, until it is known what comes."""
SURE = (0.3, 0.7)
"""Chances of the first proposer's likeliest draft between which what others bring is averaged apart."""


@dataclass(slots=True)
class Payoffs:
    """Estimates the gain of a secondary proposer: expected tokens of its drafts, plus the mean error of that."""

    each: tuple[Payoff, ...] = field(
        default_factory=lambda: tuple(Payoff() for _ in range(2 * (len(SURE) + 1)))
    )
    """By how sure the first proposer is, alone and in a batch; `brought` are expected tokens."""
    more: float = 0.0
    """Average number of accepted tokens above the expected ones."""
    asked: int = BELIEVED

    def learn(self, now: Payoff, came: float, expected: float) -> None:
        """Learn from a step that was expected to bring more tokens, and brought those that came."""
        now.brought = now.moved(now.brought, expected)
        self.asked += 1
        self.more += max(RATE, 1.0 / self.asked) * (came - expected - self.more)

    def asks(self, now: Payoff, token_ms: float) -> bool:
        """Decide whether to ask now. `token_ms`: what a token is worth."""
        return now.asks(token_ms, now.took_ms - self.more * token_ms)


@dataclass(slots=True)
class Partner:
    """Asks a secondary proposer, and estimates its cost and its extra accepted tokens by how sure the first one is."""

    proposer: Proposer
    payoffs: Payoffs = field(default_factory=Payoffs)
    now: Payoff = field(default_factory=Payoff)
    """Estimate that applies to this step."""
    scale: float = 1.0
    """Accepted tokens of its drafts / those that its probabilities expected."""
    asked_ms: float = 0.0
    rested: bool = True
    """Whether it was left out in the step before. Then it has to catch up, which costs more than a usual call."""
    tree: DraftTree | None = None
    """Its draft tree for this step."""

    def asks(self, first: DraftTree, token_ms: float, batched: bool = False) -> bool:
        """Decide whether to ask now, beside the first proposer's tree. `token_ms`: what a token is worth."""
        sure = max(first.probabilities, default=0.0)
        self.now = self.payoffs.each[sum(sure >= border for border in SURE) + batched * (len(SURE) + 1)]
        return self.payoffs.asks(self.now, token_ms)

    def ask(self, limit: int | None) -> DraftTree:
        """Return the proposer's tree, its chances scaled by what was accepted so far."""
        began = time.perf_counter()
        return self._asked(self.proposer.propose(limit), (time.perf_counter() - began) * 1e3)

    def drafting(self, cost: DraftCost, limit: int | None) -> DraftCoroutine:
        """Return the tree that `ask` returns, for a batched forward."""
        drafting, answer, ms = self.proposer.drafting(cost, limit), None, 0.0
        while True:
            began = time.perf_counter()
            try:
                wanted = drafting.send(answer)
            except StopIteration as end:
                return self._asked(end.value, ms + (time.perf_counter() - began) * 1e3)
            ms += (time.perf_counter() - began) * 1e3
            answer = yield wanted
            ms += answer.ms

    def _asked(self, tree: DraftTree, ms: float) -> DraftTree:
        self.tree, self.asked_ms = tree, ms
        self.now.asked, self.now.silent = self.now.asked + 1, 0
        return replace(tree, probabilities=tuple(min(p * self.scale, 1.0) for p in tree.probabilities))

    def rest(self) -> None:
        """Note a step in which it was not asked."""
        self.now.silent, self.rested = self.now.silent + 1, True

    def learn(
        self, tokens: Sequence[int], without: int, joint: int, expected: float | None, rows_ms: float
    ) -> None:
        """Learn from committed `tokens`: `without` by the tree of the first proposer, `joint` by the joint tree, which
        was `expected` to bring so many more for `rows_ms` more."""
        tree, rested = self.tree or DraftTree(), self.rested
        self.tree, self.rested = None, False
        accepted = len(tree.path(tokens))
        came = min(max(accepted, without), joint) - without
        self.payoffs.learn(self.now, came, came if expected is None else expected)
        if not rested:
            self.now.spent(self.asked_ms, rows_ms)
        if chances := sum(tree.probabilities):
            self.scale = self.now.moved(self.scale, accepted / chances)


class JointDrafter(Proposer):
    """Joins proposers: calls `first` always, `others` if they pay; `cost` has the prices of rows and tokens.
    The joint tree has each draft once, if it pays for its row, with its highest or its blended chance."""

    def __init__(self, first: Proposer, others: Sequence[Proposer], cost: DraftCost) -> None:
        self.first = first
        self._all = [first, *others]
        self._readers = [one for one in self._all if one.reads_hidden]
        self.top = max(one.top for one in self._all)
        self.reads_hidden = bool(self._readers)
        self._others = others
        self._cost = self._priced = cost
        self._partners: list[Partner] = []
        self._tree = self._joint = DraftTree()
        self._judged: dict[int, list[tuple[int, int, float | None, float]]] = {}
        self._expected: float | None = None
        """Tokens that the joint tree is expected to bring more than the first one's, where one other judged it."""

    def see(self, hidden: NDArray[np.float32], position: int) -> None:
        for reader in self._readers:
            reader.see(hidden, position)

    def begin(self, prompt: Sequence[int]) -> None:
        self._partners = [Partner(proposer, proposer.payoffs or Payoffs()) for proposer in self._others]
        for proposer in self._all:
            proposer.begin(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        cost, self._judged = self._cost, {}
        self._tree = first = self.first.propose(limit)
        began = time.perf_counter()
        trees = [
            partner.ask(limit)
            for partner in self._partners
            if partner.asks(first, cost.token_ms)
            or cost.free  # in this order: it notes how sure the first is
        ]
        if not trees:  # it is often so, and nothing is to be slower for it
            self._joint = first
            return first
        tree = self._join(trees, cost, limit)
        return replace(tree, models_ms=first.models_ms + (time.perf_counter() - began) * 1e3)

    def propose_beside(self, cost: DraftCost, limit: int | None = None) -> DraftTree:
        """Return the first one's drafts."""
        self._judged = {}
        self._joint = self._tree = self.first.propose_beside(cost, limit)
        return self._tree

    def drafting(self, cost: DraftCost, limit: int | None = None) -> DraftCoroutine:
        """Propose for a batched forward: also by those of the others that share forwards of their own."""
        first, trees = self.propose_beside(cost, limit), list[DraftTree]()
        for partner in self._partners:
            if partner.proposer.shares_forwards and (partner.asks(first, cost.token_ms, True) or cost.free):
                trees.append((yield from partner.drafting(cost, limit)))
        return self._join(trees, cost, limit)

    def _join(self, trees: Sequence[DraftTree], cost: DraftCost, limit: int | None) -> DraftTree:
        self._priced, tree, self._expected = cost, self._tree, None
        if any(trees):
            most = cost.most if limit is None else min(limit, cost.most)
            judge = next((one.proposer for one in self._partners if one.tree and one.proposer.blend), None)
            if judge and judge.blend and len(trees) == 1:
                self._judged, tree, alone = judged(tree, trees[0], judge.probability, judge.blend.chance)
                tree = pruned(tree, cost.onward, cost.token_ms, most)
                self._expected = sum(tree.probabilities) - alone
            else:
                tree = merge([tree, *trees], cost.onward, cost.token_ms, most)
        self._joint = tree
        return tree

    def cut(self, nodes: int) -> None:
        """Keep the first `nodes` of the tree: the others do not go through the forward."""
        alone, self._joint = self._joint is self._tree, self._joint.cut(nodes)
        if alone:
            self._tree = self._joint
            self.first.cut(nodes)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        if any(partner.tree is not None for partner in self._partners):
            first, joint, extra = self._tree, self._joint, self._priced.extra
            without, brought = len(first.path(tokens)), len(joint.path(tokens))
            rows_ms = float(extra[min(len(joint), len(extra) - 1)] - extra[min(len(first), len(extra) - 1)])
        for partner in self._partners:
            if partner.tree is None:
                partner.rest()
                continue
            partner.learn(tokens, without, brought, self._expected, rows_ms)
            if self._judged and partner.proposer.blend:
                self._teach(partner.proposer.blend, tokens)
        for proposer in self._all:
            proposer.observe(tokens, None if top is None or not proposer.top else top[:, : proposer.top])

    def _teach(self, blend: Blend, tokens: Sequence[int]) -> None:
        place = -1
        for token in tokens:
            following = -2
            for node, drafted, database, model in self._judged.get(place, ()):
                blend.learn(database, model, drafted == token)
                following = node if drafted == token else following
            if (place := following) == -2:
                return
