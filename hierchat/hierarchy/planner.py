"""Choose the plan in force, and search again as costs and acceptance rates become known or change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from hierchat.drafting.draft_cost import Latency
from hierchat.hierarchy.plan import (
    Found,
    LevelStack,
    Plan,
    Provenance,
    RetrievalLevel,
    TokenAcceptance,
    Yield,
    best_plan,
    by_renewal,
)

KINDS: tuple[Provenance, ...] = get_args(Provenance)
FORGET = 1 / 1500
"""Part of what was seen of agreement that is forgotten with every token."""
FORGET_FORWARDS = 1 / 400
"""Part of what was seen of forwards over the databases' drafts that is forgotten with every forward."""
PRIOR_TOKENS = 24.0
"""Weight of the prior, in tokens."""
SHRINK = 12.0
"""Weight of the average over all kinds, in tokens of one kind."""
LONGEST = 32
"""Kept drafts of one forward, at most; more count as so many."""
CLIP = 2.0
"""Times the usual duration that a step counts as, at most."""
SOME = 40.0
"""Forwards after which a histogram stands for itself."""


class Agreement:
    """Learn how often a level's tokens are what one above it chooses; older ones count less and less."""

    def __init__(self, prior: float) -> None:
        self._seen = np.full(len(KINDS), PRIOR_TOKENS / len(KINDS))
        self._right = prior * self._seen

    def note(self, kinds: Sequence[Provenance], accepted: int) -> None:
        """Note that the first `accepted` tokens, of these kinds, were accepted, and the next, if any, refused."""
        for number, kind in enumerate(kinds[: accepted + 1]):
            self._seen *= 1.0 - FORGET
            self._right *= 1.0 - FORGET
            at = KINDS.index(kind)
            self._seen[at] += 1.0
            self._right[at] += number < accepted

    def acceptance(self) -> TokenAcceptance:
        overall = float(self._right.sum() / self._seen.sum())
        kept, corrected, bonus = ((self._right + SHRINK * overall) / (self._seen + SHRINK)).tolist()
        return TokenAcceptance(kept, corrected, bonus, overall)


class RetrievalEstimate:
    """Learn how many tokens the forwards of a level with the databases below it bring, and what they take."""

    def __init__(self) -> None:
        self._corrected = np.zeros(LONGEST + 1)
        self._bonus = np.zeros(LONGEST + 1)
        self._ms = 0.0

    def note(self, kept: int, bonus: bool, ms: float) -> None:
        """Note that a forward kept so many drafts; all of them, if its own token is a bonus."""
        for counts in (self._corrected, self._bonus):
            counts *= 1.0 - FORGET_FORWARDS
        (self._bonus if bonus else self._corrected)[min(kept, LONGEST)] += 1.0
        seen = self._corrected.sum() + self._bonus.sum()
        if seen > SOME:  # what takes far longer waited for another program
            ms = min(ms, CLIP * self._ms)
        self._ms += (ms - self._ms) / min(seen, 1 / FORGET_FORWARDS)

    def retrieval_level(self) -> RetrievalLevel | None:
        """Return the level with its databases, as measured; None while too little was seen."""
        seen = self._corrected.sum() + self._bonus.sum()
        if seen < SOME:
            return None
        return RetrievalLevel(Yield(self._corrected / seen, self._bonus / seen), self._ms)


def likely_run(tokens: float) -> Yield:
    """Make a distribution that brings so many tokens on average: each draft is kept as often as the one before."""
    kept = 1.0 - 1.0 / max(tokens, 1.0)
    chances = (1.0 - kept) * kept ** np.arange(LONGEST + 1)
    return Yield(chances / chances.sum(), np.zeros(LONGEST + 1))


BUCKETS = (1024, 4096)
"""Where contexts are told apart, in tokens."""
EVERY = 8
"""Forwards of the target between two searches, which take 0.5 ms with one draft model, 2.5 with six."""
BETTER = 0.98
"""Another plan takes over if it is expected to take less than this part of the present one's time."""
AVERAGED = 1 / 200
"""Weight of a step in what the databases bring the target."""
FIRST_TOKENS = 1.5
"""Tokens that they bring before anything was seen."""
REPLY = 200.0
"""Tokens of a reply before one was seen; then the average of the last ones."""
REPLIES = 1 / 20
"""Weight of a reply in that average."""
LARGE = 1e9
"""More than anything that was really measured."""
PRIOR_STEPS = 50.0
"""Weight of the databases' own estimates of a step, in steps."""
UNKNOWN = 0.5
"""Acceptance where it was not measured."""


class Hierarchy:
    """Learns a model's costs and acceptance by level, from the smallest draft model to the target, and plans with them.
    `priors`: acceptance of a level's tokens by one above, as (below, above); measured after loading."""

    def __init__(
        self,
        names: Sequence[str],
        latencies: Sequence[Latency],
        priors: Mapping[tuple[int, int], float] | None = None,
        *,
        retrieval: bool = True,
    ) -> None:
        self.names = tuple(names)
        self._latencies = tuple(latencies)
        self.priors = dict(priors or {})
        self._retrieval = retrieval
        self._agreements: dict[tuple[int, int, int], Agreement] = {}
        self._retrieval_levels: dict[tuple[int, int], RetrievalEstimate] = {}
        self._tree_tokens, self._tree_ms = FIRST_TOKENS, 0.0
        # Of steps over trees alone, (tokens, costs): what was expected, and what came.
        self._expected, self._came = np.full(2, PRIOR_STEPS), np.full(2, PRIOR_STEPS)
        self._reply_tokens, self._reply = REPLY, 0
        self.replies = 0
        """Replies that have begun; the latest one has the draft models."""
        self.broken = set[int]()
        """Draft models that computed no numbers in a reply."""
        self._found: dict[int, Found] = {}
        self._steps = 0

    @property
    def target(self) -> int:
        return len(self.names) - 1

    def agreement(self, below: int, above: int, context: int) -> Agreement:
        """Return the acceptance learned for a pair of levels in a range of contexts."""
        key = (below, above, bucket(context))
        if key not in self._agreements:
            self._agreements[key] = Agreement(self.priors.get((below, above), UNKNOWN))
        return self._agreements[key]

    def retrieval_estimate(self, level: int, context: int) -> RetrievalEstimate:
        """Return the estimate of a level with the databases below it in a range of contexts."""
        return self._retrieval_levels.setdefault((level, bucket(context)), RetrievalEstimate())

    def saw_tree(self, tokens: float, ms: float) -> None:
        """Note how many tokens the databases alone would bring the target in a step, and what that would take."""
        self._tree_tokens += AVERAGED * (tokens - self._tree_tokens)
        self._tree_ms += (ms - self._tree_ms) * (AVERAGED if self._tree_ms else 1.0)

    def tree_brought(self, expected: tuple[float, float], came: tuple[float, float]) -> None:
        """Note a step over the databases' tree alone: expected and actual (tokens, milliseconds)."""
        slower = min(came[1] / max(expected[1], 1e-6), CLIP)  # steps count alike, however long they take
        self._expected = (1.0 - AVERAGED) * self._expected + [expected[0], 1.0]
        self._came = (1.0 - AVERAGED) * self._came + [came[0], slower]

    def skips_models(
        self, plan: Plan, plan_ms: float, tree: tuple[float, float], drafts: int, context: int
    ) -> bool:
        """Return whether a step over the databases' tree alone gains more than a step of the plan at `plan_ms` per
        token. `tree`: expected tokens and ms. It must be expected to bring no fewer tokens than the plan's draft,
        because a good match makes the plan's own step cheaper, too."""
        tokens, ms = self._came / self._expected * tree
        if tokens < plan.lengths[-1] + 1.0:
            return False
        below = self.retrieval_estimate(plan.levels[0], context).retrieval_level() if plan.retrieval else None
        if below is None:
            return bool(tokens * plan_ms > ms)
        costs = self._latencies[plan.levels[0]].step_ms(context)
        spared = (plan.lengths[0] + 1.0) * below.ms / below.brings.tokens - costs[min(drafts, len(costs) - 1)]
        return bool(tokens * plan_ms - ms > spared)

    def begin_reply(self) -> int:
        """Begin another reply, and return its number."""
        self.replies += 1
        if self._reply:
            self._reply_tokens += REPLIES * (self._reply - self._reply_tokens)
        self._reply = 0
        return self.replies

    def worth_reading(self, plan: Plan, context: int, reading_ms: float) -> bool:
        """Tell whether a plan saves more in a reply than its draft models need to read the text first."""
        stack = self.stack(context)
        alone = Plan((self.target,), (), self._retrieval)
        saved = by_renewal(stack, alone) - by_renewal(stack, plan)
        return saved * self._reply_tokens > reading_ms

    def stack(self, context: int) -> LevelStack:
        """Return the costs and acceptance of all levels behind so many tokens."""
        costs = [latency.step_ms(context) for latency in self._latencies]
        for level in self.broken:
            costs[level] = [LARGE] * len(costs[level])
        levels = range(len(self.names))
        acceptance: list[list[TokenAcceptance]] = [
            [self.agreement(below, above, context).acceptance() for above in levels] for below in levels[:-1]
        ]
        retrieval_levels = (
            [self._retrieval_level(level, costs, context) for level in levels] if self._retrieval else []
        )
        return LevelStack(costs, acceptance, retrieval_levels)

    def _retrieval_level(self, level: int, costs: Sequence[Sequence[float]], context: int) -> RetrievalLevel:
        tokens, ms = self._came / self._expected * [self._tree_tokens, self._tree_ms]
        target = RetrievalLevel(likely_run(tokens), ms or costs[self.target][0] * FIRST_TOKENS)
        if level == self.target:
            return target
        seen = self.retrieval_estimate(level, context).retrieval_level()
        # Before it was seen: as many tokens as for the target, at this model's share of the cost.
        return seen or RetrievalLevel(target.brings, target.ms * costs[level][0] / costs[self.target][0])

    def found(self, context: int) -> Found:
        """Return the plan to follow behind so many tokens, and the pace expected of it."""
        key = bucket(context)
        if key not in self._found or self._steps >= EVERY:
            self._steps = 0
            stack = self.stack(context)
            best = best_plan(stack)
            now = self._found.get(key)
            if now is not None:
                now = Found(now.plan, by_renewal(stack, now.plan))
            self._found[key] = now if now is not None and best.ms > BETTER * now.ms else best
        return self._found[key]

    def leave_out(self, level: int) -> None:
        """Plan without a draft model from now on: it computed no numbers."""
        self.broken.add(level)
        self._found.clear()

    def step(self, tokens: int) -> None:
        """Note how many tokens a step of the plan brought."""
        self._steps += 1
        self._reply += tokens


def bucket(context: int) -> int:
    """Return the number of the range of context lengths in which this one lies."""
    return sum(context >= border for border in BUCKETS)
