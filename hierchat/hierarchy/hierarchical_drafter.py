"""Draft with a stack of draft models: the databases' tree alone where that is faster, else what the levels write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.draft_cost import DraftCost
from hierchat.drafting.draft_tree import NO_MATCH, DraftTree, Match, with_branches
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.proposer import Proposer
from hierchat.engine.draft_model import CachedDraftModel, DraftedReply
from hierchat.engine.sampling.sampler import BrokenLogits
from hierchat.hierarchy.plan import Found, Plan, Provenance
from hierchat.hierarchy.planner import Hierarchy


@dataclass(eq=False)
class Level(Proposer):
    """Writes drafts of at least `least` tokens by a draft model, with drafts of the level or databases below.
    `number` is its own among the hierarchy's levels, and `above` that of the level that verifies its drafts."""

    model: CachedDraftModel
    below: Drafter | Level | None
    least: int
    number: int
    above: int
    _hierarchy: Hierarchy
    _reply: DraftedReply
    context: int = 0
    """Tokens of the text before this step, by which the hierarchy tells contexts apart."""

    def __post_init__(self) -> None:
        self._start = 0
        self._draft: list[int] = []
        self._kinds: list[Provenance] = []
        self._sources: list[str] = []
        self._matches: list[Match] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin a new reply after `prompt`."""
        self.model.begin(prompt)
        self._draft = []
        if self.below:
            self.below.begin(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        """Write a draft as a chain of at most `limit` tokens; shorter where the reply ends or is stopped."""
        self._start, self._draft, self._kinds = self.model.length, [], []
        self._sources, self._matches = [], []
        most = self.model.room - 1 if limit is None else min(limit, self.model.room - 1)
        while len(self._draft) < min(self.least, most) and not self._reply.stop.is_set():
            began, read = time.perf_counter(), self.model.read_ms
            drafts = self.below.propose(most - len(self._draft) - 1) if self.below else DraftTree()
            try:
                tokens = self.model.verify(drafts)
            except BrokenLogits:
                self._hierarchy.leave_out(self.number)
                raise
            if not tokens:
                break
            if self.below:
                self.below.observe(tokens)
            bonus = self._add(drafts, tokens)
            ms = (time.perf_counter() - began) * 1e3 - (self.model.read_ms - read)
            if isinstance(self.below, Drafter):
                learned = self._hierarchy.retrieval_estimate(self.number, self.context)
                learned.note(len(tokens) - 1, bonus, ms)
            if any(token in self._reply.end_ids for token in tokens):
                break
        chain = self._draft
        return DraftTree(
            tuple(chain), tuple(range(-1, len(chain) - 1)), tuple(self._sources), matches=tuple(self._matches)
        )

    def _add(self, drafts: DraftTree, tokens: Sequence[int]) -> bool:
        """Add a forward's tokens to the draft; return whether the last one is a bonus."""
        nodes = drafts.links()
        above = -1
        for token in tokens[:-1]:
            above = nodes[above, token]
            self._sources.append(drafts.sources[above])
            self._matches.append(drafts.match(above))
            self._kinds.append("kept")
        bonus = above not in drafts.parents if above >= 0 else not drafts.tokens
        self._sources.append(self.model.name)
        self._matches.append(NO_MATCH)
        self._kinds.append("bonus" if bonus else "corrected")
        self._draft += tokens
        return bonus

    def observe(self, tokens: Sequence[int], top: object = None) -> None:
        """Take over the tokens that the level above chose in place of the draft."""
        same = 0
        while same < min(len(tokens), len(self._draft)) and tokens[same] == self._draft[same]:
            same += 1
        if self._draft:
            self._hierarchy.agreement(self.number, self.above, self.context).note(self._kinds, same)
        self.follow(self._start + same if self._draft else self.model.length, tokens[same:])

    def follow(self, length: int, tokens: Sequence[int]) -> None:
        """Keep the first `length` tokens of the text, and append these."""
        self.model.follow(length, tokens)
        if self.below:
            self.below.follow(length, tokens)
        self._draft = []


class HierarchicalDrafter(Proposer):
    """Proposes drafts by a stack of draft models and databases. `retrieval` drafts for the target, `stacked` [level]
    has each draft model and its databases. `reply`: its end tokens and its Stop end drafts early. `plan` fixes what
    `hierarchy` would choose."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        retrieval: Drafter | None,
        stacked: Sequence[tuple[CachedDraftModel, Drafter]],
        reply: DraftedReply,
        plan: Plan | None = None,
    ) -> None:
        self.hierarchy = hierarchy
        self.retrieval = retrieval
        self.top = retrieval.top if retrieval else 0
        self._models = [model for model, _ in stacked]
        self._retrieval_levels = [drafter for _, drafter in stacked]
        self._reply = reply
        self.fixed = plan
        self.plan: Plan | None = None
        """The plan that was last followed."""
        self._highest: Level | None = None
        self._levels: list[Level] = []
        self._text: list[int] = []
        self._searched: Plan | None = None
        self._wrote = self._beside = False
        self._number = 0
        self._tree: tuple[float, float] | None = None
        """Tokens and milliseconds expected of a step over the databases' tree alone."""
        self._began = self._read_ms = 0.0
        self.reply_ms = 0.0
        """Milliseconds of all steps so far, without what draft models read before they could draft."""

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self.plan, self._highest, self._searched = None, None, None
        self._number = self.hierarchy.begin_reply()
        self._beside = True
        if self.retrieval:
            self.retrieval.begin(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        self._wrote = False
        self._beside = self.hierarchy.replies != self._number  # another reply has the draft models
        if self._beside:
            return self.retrieval.propose(limit) if self.retrieval else DraftTree()
        self._began, self._read_ms = time.perf_counter(), self._models_read_ms
        expected = self._follow_plan()
        self._tree, tree = None, self._retrieved(limit, expected)
        if self._highest is None or self._reply.stop.is_set():
            return tree
        assert self.plan
        if self._tree and not self.fixed:
            context = len(self._text)
            if self.hierarchy.skips_models(self.plan, expected, self._tree, len(tree), context):
                return tree
        for level in self._levels:
            level.context = len(self._text)
        began = time.perf_counter()
        try:
            chain = self._highest.propose(limit)
        except BrokenLogits:  # a draft model's, which the reply does without
            self._build(Plan((self.hierarchy.target,), (), self.retrieval is not None))
            return tree
        if not chain:
            return tree
        self._wrote = True
        chain = replace(chain, models_ms=(time.perf_counter() - began) * 1e3)
        if not self.retrieval:
            return chain
        cost = self.retrieval.cost
        pair = (self.plan.levels[-2], self.hierarchy.target)
        accepted = self.hierarchy.agreement(*pair, len(self._text)).acceptance()
        most = limit or len(chain) + len(tree)
        return with_branches(chain, tree, accepted.overall, cost.onward, cost.token_ms, most)

    def propose_beside(self, cost: DraftCost, limit: int | None = None) -> DraftTree:
        """Propose the databases' tree alone: all who share the forward would wait for the draft models."""
        self._wrote, self._beside = False, True
        return self.retrieval.propose_beside(cost, limit) if self.retrieval else DraftTree()

    def cut(self, nodes: int) -> None:
        """Keep only the first `nodes` of the tree: no more go through the forward."""
        if self.retrieval:
            self.retrieval.cut(nodes)

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        wrote, self._wrote = self._wrote, False
        if self.retrieval:
            (self.retrieval.learn if wrote else self.retrieval.observe)(tokens, top)
        if self._highest and self.hierarchy.replies == self._number:
            if wrote:
                self._highest.observe(tokens)
            else:
                self._highest.follow(len(self._text), tokens)
        self._text += tokens
        if self._beside:  # or nothing was proposed
            return
        self._beside = True
        ms = (time.perf_counter() - self._began) * 1e3 - (self._models_read_ms - self._read_ms)
        self.reply_ms += ms
        if self._tree and not wrote:
            self.hierarchy.tree_brought(self._tree, (len(tokens), ms))
        self.hierarchy.step(len(tokens))

    @property
    def _models_read_ms(self) -> float:
        return sum(model.read_ms for model in self._models)

    def _follow_plan(self) -> float:
        """Build the levels of the present plan if it changed; return the expected ms per token, 0 without draft
        models."""
        context = len(self._text)
        found = Found(self.fixed, 0.0) if self.fixed else self.hierarchy.found(context)
        if found.plan != self._searched:
            self._searched = plan = found.plan
            self._build(plan)
            if self._highest:
                self._highest.begin(self._text)
                reading_ms = sum(self._models[level].reading_ms for level in plan.levels[:-1])
                # Only the target if the draft models would take longer to read than they save
                if not self.fixed and not self.hierarchy.worth_reading(plan, context, reading_ms):
                    self._build(Plan((self.hierarchy.target,), (), self.retrieval is not None))
        return found.ms if self._highest else 0.0

    def _build(self, plan: Plan) -> None:
        self.plan, self._highest, self._levels = plan, None, []
        for at, (level, length) in enumerate(zip(plan.levels, plan.lengths, strict=False)):
            below = self._retrieval_levels[level] if plan.retrieval and at == 0 else self._highest
            model, above = self._models[level], plan.levels[at + 1]
            self._highest = Level(model, below, length, level, above, self.hierarchy, self._reply)
            self._levels.append(self._highest)

    def _retrieved(self, limit: int | None, expected: float) -> DraftTree:
        """Propose the databases' tree, whose nodes are worth their rows at the pace expected of the plan."""
        if not self.retrieval:
            return DraftTree()
        cost = self.retrieval.cost
        cost.otherwise_ms = expected or float("inf")
        tree = self.retrieval.propose(limit)
        self._tree = (1.0 + sum(tree.probabilities), cost.step_ms(len(tree)))
        self.hierarchy.saw_tree(*self._tree)
        return tree
