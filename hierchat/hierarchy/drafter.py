"""The drafter with draft models: the databases alone where they know enough, else what the plan's levels write."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from threading import Event

import numpy as np
from numpy.typing import NDArray

from hierchat.drafting.drafter import Drafter
from hierchat.drafting.tree import DraftTree
from hierchat.hierarchy.level import DraftModel, Level
from hierchat.hierarchy.living import Hierarchy, Learner
from hierchat.hierarchy.merge import merge
from hierchat.hierarchy.plan import Plan

NO_DRAFTS = DraftTree()


class HierarchicalDrafter:
    """A Proposer. `retrieval` drafts for the target; `grounds` [level] for each draft model, from databases of the
    same kind; `models` [level] write. `plan` fixes what `hierarchy` would choose.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        retrieval: Drafter | None,
        models: Sequence[DraftModel],
        grounds: Sequence[Drafter],
        end_ids: Collection[int],
        stop: Event,
        plan: Plan | None = None,
    ) -> None:
        self.hierarchy = hierarchy
        self.retrieval = retrieval
        self.top = retrieval.top if retrieval else 0
        self._models = models
        self._grounds = grounds
        self._end_ids = end_ids
        self._stop = stop
        self._fixed = plan
        self.plan: Plan | None = None
        """What was last followed."""
        self._highest: Level | None = None
        self._learners: list[Learner] = []
        self._text: list[int] = []
        self._wrote = False
        self._began = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = list(prompt)
        self.plan, self._highest = None, None
        if self.retrieval:
            self.retrieval.begin(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        self._wrote = False
        self._began = time.perf_counter()
        expected = self._follow_plan()
        tree = self._retrieved(limit, expected)
        if self._highest is None or self._stop.is_set():
            return tree
        if self.retrieval and tree and _ms_per_token(tree, self.retrieval) <= expected:
            return tree
        for learner in self._learners:
            learner.context = len(self._text)
        began = time.perf_counter()
        chain = self._highest.propose(limit)
        if not chain:
            return tree
        self._wrote = True
        chain = replace(chain, models_ms=(time.perf_counter() - began) * 1e3)
        accepted = self.hierarchy.agreement(self._top_level, self.hierarchy.target, len(self._text))
        onward, worth = (
            (self.retrieval.price.onward, self.retrieval.price.token_ms) if self.retrieval else ((), 0)
        )
        return merge(
            chain, tree, accepted.acceptance().overall, onward, worth, limit or len(chain) + len(tree)
        )

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        if self.retrieval:
            (self.retrieval.learn if self._wrote else self.retrieval.observe)(tokens, top)
        if self._highest:
            if self._wrote:
                self._highest.observe(tokens)
            else:
                self._highest.follow(len(self._text), tokens)
        self._text += tokens
        self._wrote = False
        assert self.plan
        self.hierarchy.step(self.plan, len(tokens), (time.perf_counter() - self._began) * 1e3)

    @property
    def _top_level(self) -> int:
        assert self.plan
        return self.plan.levels[-2]

    def _follow_plan(self) -> float:
        """Puts the levels of the present plan together where it is another one; milliseconds per token expected."""
        context = len(self._text)
        if self._fixed:
            plan, expected = self._fixed, 0.0
        else:
            found = self.hierarchy.found(context)
            plan, expected = found.plan, found.ms
        if plan != self.plan:
            self.plan, self._highest, self._learners = plan, None, []
            for at, (level, block) in enumerate(zip(plan.levels, plan.blocks, strict=False)):
                grounded = plan.retrieval and at == 0
                below = self._grounds[level] if grounded else self._highest
                learner = Learner(self.hierarchy, level, plan.levels[at + 1], grounded=grounded)
                self._learners.append(learner)
                self._highest = Level(self._models[level], below, block, learner, self._end_ids, self._stop)
            if self._highest:
                self._highest.begin(self._text)
        return expected

    def _retrieved(self, limit: int | None, expected: float) -> DraftTree:
        """What the databases know, as a tree worth its rows beside what the plan is expected to take."""
        if not self.retrieval:
            return NO_DRAFTS
        self.retrieval.price.otherwise_ms = expected or float("inf")
        tree = self.retrieval.propose(limit)
        self.hierarchy.saw_tree(1.0 + sum(tree.probabilities), self.retrieval.price.step_ms(len(tree)))
        return tree


def _ms_per_token(tree: DraftTree, retrieval: Drafter) -> float:
    """Expected of a forward over nothing but this tree."""
    return retrieval.price.step_ms(len(tree)) / (1.0 + sum(tree.probabilities))
