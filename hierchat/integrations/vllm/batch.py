"""Drafts for all replies of a forward: where rows are dear, or many replies share them, each gets fewer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hierchat.drafting.cost import DraftCost
from hierchat.drafting.dividing import divided
from hierchat.drafting.tree import DraftTree
from hierchat.integrations.vllm.costs import RowCosts
from hierchat.integrations.vllm.reply import NO_DRAFTS, Reply

TOOK_MS = 0.3
"""What drafting for one reply takes, before it was measured."""
RATE = 0.02


class Batch:
    """The forward that is under way, and what such forwards cost."""

    def __init__(self, costs: RowCosts, most: int, vocabulary: int) -> None:
        """`most`: drafts of one reply in one forward. `vocabulary`: tokens that the model has."""
        self._costs, self._most, self._vocabulary = costs, most, vocabulary
        self._cost = DraftCost(costs)
        self._took_ms = TOOK_MS
        self._under_way: list[Reply] = []
        self._width = 0
        self._left_at = 0.0
        self.draft_ms = 0.0
        """What drafting for it took,"""
        self.mean_ms = 0.0
        """and takes on average."""

    @property
    def together(self) -> int:
        """Replies that share it."""
        return len(self._under_way)

    def ended(self, replies: Sequence[Reply | None], brought: int) -> float:
        """The forward brought so many tokens to these replies; None: one that is new, or whose prompt is being read.
        Call it before the replies take their tokens. Returns the milliseconds that it took, 0: not known."""
        under_way = {id(reply) for reply in self._under_way}
        known = [reply for reply in replies if reply is not None and id(reply) in under_way]
        if not self._left_at or not known:
            return 0.0
        ms = (time.perf_counter() - self._left_at) * 1e3
        if len(known) == len(replies):  # no prompt was read in it
            self._costs.note(sum(1 + len(reply.draft) for reply in known), ms)
            if len(known) == self.together:
                self._cost.note(self._width, brought)
        return ms

    def propose(self, replies: Sequence[Reply], began: float) -> list[DraftTree]:
        """A chain for each. `began`: when vLLM asked, of time.perf_counter."""
        cost, roots = self._cost, len(replies)
        chains: list[DraftTree] = []
        if roots:
            cost.look(0, roots)
        for reply in replies:
            room = reply.room(self._most)
            if not room or not cost.most or not reply.pays(cost.token_ms, self._took_ms):
                reply.rest()
                chains.append(NO_DRAFTS)
                continue
            asked = time.perf_counter()
            chains.append(reply.propose(cost, room, self._vocabulary))
            took = (time.perf_counter() - asked) * 1e3
            self._took_ms += RATE * (min(took, 4 * self._took_ms) - self._took_ms)
        for reply, kept in zip(replies, divided(chains, cost), strict=True):
            reply.cut(kept)
        self._under_way = list(replies)
        self._width = sum(1 + len(reply.draft) for reply in replies)
        self._left_at = time.perf_counter()
        self.draft_ms = (self._left_at - began) * 1e3
        self.mean_ms += RATE * (self.draft_ms - self.mean_ms) if self.mean_ms else self.draft_ms
        return [reply.draft for reply in replies]
