"""Expected latency of a plan, in milliseconds per token.

Two forms. `by_recurrence`: a level's latency from that of the level below, as if drafts were exactly as long as asked
for. `by_renewal`: exact, where tokens are accepted independently given how they came about. A draft ends with the
forward that makes it long enough, so its length is random. Its tokens are runs of kept drafts with a token of the
level's own behind each.
"""

from __future__ import annotations

import numpy as np

from hierchat.hierarchy.draft_length import pass_up
from hierchat.hierarchy.plan import Ladder, Plan, Yield


def gain(acceptance: float, drafts: int) -> float:
    """Tokens that a forward over `drafts` drafts brings on average: (1 - a^(T + 1)) / (1 - a)."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return float((1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance))


def by_recurrence(ladder: Ladder, plan: Plan) -> float:
    """L_j = (T L_i + c_j(T + 1)) / g(a_ij, T), from the lowest level up."""
    lowest = ladder.retrieval_level(plan.levels[0], plan.retrieval)
    latency = lowest.ms / lowest.brings.tokens
    for below, above, length in zip(plan.levels, plan.levels[1:], plan.lengths, strict=False):
        accepted = ladder.acceptance[below][above].overall
        latency = (length * latency + ladder.cost(above, length + 1)) / gain(accepted, length)
    return latency


def by_renewal(ladder: Ladder, plan: Plan) -> float:
    """Time per forward of the target, all that lies below it included, over the tokens that it brings."""
    lowest = ladder.retrieval_level(plan.levels[0], plan.retrieval)
    run, ms = lowest.brings, lowest.ms
    for below, above, length in zip(plan.levels, plan.levels[1:], plan.lengths, strict=False):
        accepted = ladder.acceptance[below][above]
        # By Wald: how many forwards make a draft does not depend on what is still to come.
        forwards, sizes, corrected, bonus = pass_up(
            run.corrected, run.bonus, length, accepted.kept, accepted.corrected, accepted.bonus
        )
        costs = np.array([ladder.cost(above, length + more + 1) for more in range(len(sizes))])
        ms = forwards * ms + float(sizes @ costs)
        run = Yield(corrected, bonus)
    return ms / run.tokens
