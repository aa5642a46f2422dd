"""Draft for all replies of a forward: where rows are dear, or many replies share them, each gets fewer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from hierchat.drafting.draft_cost import DraftCost, RowCosts
from hierchat.drafting.draft_tree import DraftTree, best_chain, divided
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.kernel_arrays import MAX_MATCH
from hierchat.drafting.payoff import Payoff
from hierchat.drafting.vllm.drafter_settings import RequestOptions
from hierchat.drafting.vllm.user_state import UserState

TARGET = "target"
"""The source of a token that no draft proposed; as engine/engine.py has it, which cannot be imported here."""
NODES = 16
"""Nodes of the tree that a chain is chosen from. More found no better ones (docs/log.md)."""
NO_DRAFTS = DraftTree()


class TrackedReply:
    """Track a reply of vLLM from its first token to its last, with what was drafted for it."""

    def __init__(
        self, asked: RequestOptions, user: UserState, drafter: Drafter, prompt: Sequence[int], longest: int
    ) -> None:
        """Begin a reply. `longest`: tokens of prompt and reply together."""
        self.asked, self.user, self.drafter = asked, user, drafter
        self.state: Literal["writing", "ended", "aborted", "forgotten"] = "writing"
        self.steps: list[dict[str, Any]] = []
        """Each forward that brought tokens, as the channel reports it, with fields as in engine/engine.py."""
        self.draft = NO_DRAFTS
        self.drafted = False
        """Whether drafts were looked for before the forward that is under way."""
        self._lead = list(prompt[-MAX_MATCH:])
        self._prompt = len(prompt)
        self._longest = longest
        self._tokens: list[int] = []
        self.payoff = Payoff()
        drafter.begin(prompt)

    @property
    def length(self) -> int:
        return self._prompt + len(self._tokens)

    @property
    def text(self) -> list[int]:
        """Return the reply, and before it the end of what it answers, by which it is found again."""
        return self._lead + self._tokens

    def room(self, most: int) -> int:
        """Count the drafts that the next forward may have, of `most`."""
        bounds = [most, self._longest - self.length - 1]
        if self.asked.most_tokens is not None:
            bounds.append(self.asked.most_tokens - len(self._tokens) - 1)
        if self.asked.most_drafts is not None:
            bounds.append(self.asked.most_drafts)
        return max(min(bounds), 0)

    def propose(self, cost: DraftCost, most: int, vocabulary: int) -> DraftTree:
        """Draft the chain that pays best in a shared forward, up to the first token that the model does not have."""
        drafter = self.drafter
        drafter.acceptance = self.user.acceptance  # it may just have been read
        chain = best_chain(drafter.propose_beside(cost, NODES), cost, most)
        strange = (number for number, token in enumerate(chain.tokens) if token >= vocabulary)
        self.draft = chain.cut(next(strange, len(chain)))
        self.drafted = True
        return self.draft

    def take(self, new: Sequence[int], draft_ms: float, forward_ms: float, together: int) -> None:
        """Take the accepted tokens of the chain and one of the target's own, without those after the reply's end."""
        kept = self._up_to_end(new)
        chain = self.draft
        right = 0
        while right < min(len(kept), len(new) - 1, len(chain)) and chain.tokens[right] == kept[right]:
            right += 1
        own = len(kept) - right
        self.steps.append(
            {
                "tokens": kept,
                "sources": [*chain.sources[:right], *[TARGET] * own],
                "proposed": Counter(chain.sources),
                "width": 1 + len(chain),
                "draft_ms": round(draft_ms, 3),
                "forward_ms": round(forward_ms, 3),
                "together": together,
            }
        )
        if self.drafted:
            self.payoff.asked, self.payoff.silent = self.payoff.asked + 1, 0
            self.payoff.brought = self.payoff.moved(self.payoff.brought, right)
        self.drafter.learn(kept)
        self._tokens += kept
        self.draft, self.drafted = NO_DRAFTS, False

    def catch_up(self, missed: Sequence[int]) -> None:
        """Take the tokens, if any, by which vLLM went on without asking for drafts."""
        if missed:
            self.draft, self.drafted = NO_DRAFTS, False
        for token in missed:
            self.take([token], 0.0, 0.0, 1)

    def _up_to_end(self, new: Sequence[int]) -> list[int]:
        kept: list[int] = []
        for token in new:
            kept.append(token)
            if (
                token in self.asked.ends
                or len(self._tokens) + len(kept) == self.asked.most_tokens
                or self.length + len(kept) >= self._longest
            ):
                if self.state == "writing":
                    self.state = "ended"
                break
        return kept

    def to_json(self, first: int) -> dict[str, Any]:
        """Return the reply's figures as the channel reports them; of the steps those from `first` on."""
        sources, proposed, accepted = Counter[str](), Counter[str](), Counter[str]()
        for step in self.steps:
            sources.update(step["sources"])
            proposed.update(step["proposed"])
            accepted.update(source for source in step["sources"] if source != TARGET)
        later = [len(step["tokens"]) for step in self.steps[1:]]
        return {
            "state": self.state,
            "prompt_tokens": self._prompt,
            "tokens": len(self._tokens),
            "first": first,
            "next": max(first, len(self.steps)),
            "steps": self.steps[first:],
            "tokens_per_forward": sum(later) / len(later) if later else None,
            "sources": sources,
            "proposed": proposed,
            "accepted": accepted,
            "draft_ms": round(sum(step["draft_ms"] for step in self.steps), 3),
        }


TOOK_MS = 0.3
"""What drafting for one reply takes, before it was measured."""
BATCH_RATE = 0.02


class Batch:
    """Track the forward that is under way, and learn what such forwards cost."""

    def __init__(self, costs: RowCosts, most: int, vocabulary: int) -> None:
        """Start with `most`: drafts of one reply in one forward; `vocabulary`: tokens that the model has."""
        self._costs, self._most, self._vocabulary = costs, most, vocabulary
        self._cost = DraftCost(costs)
        self._took_ms = TOOK_MS
        self._under_way: list[TrackedReply] = []
        self._width = 0
        self._left_at = 0.0
        self.draft_ms = 0.0
        """What drafting for it took,"""
        self.mean_ms = 0.0
        """and takes on average."""

    @property
    def together(self) -> int:
        return len(self._under_way)

    def ended(self, replies: Sequence[TrackedReply | None], brought: int) -> float:
        """Note that the forward brought so many tokens to each reply (None: new, or reading); return its ms, or 0."""
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

    def propose(self, replies: Sequence[TrackedReply], began: float) -> list[DraftTree]:
        """Draft a chain for each reply. `began`: when vLLM asked, of time.perf_counter."""
        cost, roots = self._cost, len(replies)
        chains: list[DraftTree] = []
        if roots:
            cost.look(0, roots)
        for reply in replies:
            room = reply.room(self._most)
            if not room or not cost.most or not reply.payoff.asks(cost.token_ms, self._took_ms):
                reply.draft, reply.drafted = NO_DRAFTS, False
                reply.payoff.silent += 1
                chains.append(NO_DRAFTS)
                continue
            asked = time.perf_counter()
            chains.append(reply.propose(cost, room, self._vocabulary))
            took = (time.perf_counter() - asked) * 1e3
            self._took_ms += BATCH_RATE * (min(took, 4 * self._took_ms) - self._took_ms)
        for reply, kept in zip(replies, divided(chains, cost), strict=True):
            reply.draft = reply.draft.cut(kept)  # no more go through the forward
        self._under_way = list(replies)
        self._width = sum(1 + len(reply.draft) for reply in replies)
        self._left_at = time.perf_counter()
        self.draft_ms = (self._left_at - began) * 1e3
        self.mean_ms += BATCH_RATE * (self.draft_ms - self.mean_ms) if self.mean_ms else self.draft_ms
        return [reply.draft for reply in replies]
