"""One request of vLLM: what was drafted for it, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hierchat.drafting.chain import best_chain
from hierchat.drafting.cost import DraftCost
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.growing.layout import MAX_MATCH
from hierchat.drafting.tree import NO_MATCH, DraftTree, Match
from hierchat.integrations.vllm.asked import Asked
from hierchat.integrations.vllm.books import User

TARGET = "target"
"""The source of a token that no draft proposed; as engine/step.py has it, which cannot be imported here."""
NODES = 16
"""Of the tree that a chain is chosen from. More found no better ones (docs/log.md)."""
TRIALS = 4
"""Forwards of a reply in which drafts are looked for in any case."""
AGAIN = 32
"""Forwards from one trial to the next where looking for them does not pay."""
RATE = 0.1
NO_DRAFTS = DraftTree()

State = Literal["writing", "ended", "aborted", "forgotten"]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward that brought tokens, as engine/step.py has it."""

    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    chances: tuple[float | None, ...]
    matches: tuple[Match, ...]
    proposed: Counter[str]
    width: int
    draft_ms: float
    forward_ms: float
    together: int

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "sources": self.sources,
            "chances": [None if chance is None else round(chance, 4) for chance in self.chances],
            "matches": [[match.slot, match.length] for match in self.matches],
            "proposed": self.proposed,
            "width": self.width,
            "draft_ms": round(self.draft_ms, 3),
            "forward_ms": round(self.forward_ms, 3),
            "together": self.together,
        }


class Reply:
    """From its first token to its last."""

    def __init__(
        self, asked: Asked, user: User, drafter: Drafter, prompt: Sequence[int], longest: int
    ) -> None:
        """`longest`: tokens of prompt and reply together."""
        self.asked, self.user, self.drafter = asked, user, drafter
        self.state: State = "writing"
        self.steps: list[Step] = []
        self.draft = NO_DRAFTS
        self.drafted = False
        """Whether drafts were looked for before the forward that is under way."""
        self._lead = list(prompt[-MAX_MATCH:])
        self._prompt = len(prompt)
        self._longest = longest
        self._tokens: list[int] = []
        self._asked = self._silent = 0
        self._brought = 1.0
        drafter.begin(prompt)

    @property
    def length(self) -> int:
        """Tokens of prompt and reply."""
        return self._prompt + len(self._tokens)

    @property
    def text(self) -> list[int]:
        """What is kept of it: the reply, and before it the end of what it answers, by which it is found again."""
        return self._lead + self._tokens

    def room(self, most: int) -> int:
        """How many drafts the next forward may have, of `most`."""
        left = self._longest - self.length - 1
        if self.asked.most_tokens is not None:
            left = min(left, self.asked.most_tokens - len(self._tokens) - 1)
        if self.asked.most_drafts is not None:
            left = min(left, self.asked.most_drafts)
        return max(min(most, left), 0)

    def propose(self, cost: DraftCost, most: int, vocabulary: int) -> DraftTree:
        """The chain that pays best at the prices of a forward that all share. It ends before the first token that the
        model does not have: prompts may hold such, for images."""
        drafter = self.drafter
        drafter.acceptance = self.user.acceptance  # it may just have been read
        chain = best_chain(drafter.propose_beside(cost, NODES), cost, most)
        strange = (number for number, token in enumerate(chain.tokens) if token >= vocabulary)
        self.draft = chain.cut(next(strange, len(chain)))
        self.drafted = True
        return self.draft

    def pays(self, token_ms: float, took_ms: float) -> bool:
        """Whether to look for drafts: what they brought of late against the milliseconds that looking takes."""
        if self._asked < TRIALS or self._silent >= AGAIN:
            return True
        return self._brought * token_ms > took_ms

    def rest(self) -> None:
        """Nothing is drafted for the next forward."""
        self.draft, self.drafted = NO_DRAFTS, False
        self._silent += 1

    def cut(self, drafts: int) -> None:
        """Of the chain only so many go through the forward."""
        self.draft = self.draft.cut(drafts)

    def take(self, new: Sequence[int], draft_ms: float, forward_ms: float, together: int) -> None:
        """A forward brought these tokens: those of the chain that were right, and one of the target's own. What stands
        behind the end of the reply is cut."""
        kept = self._up_to_end(new)
        chain = self.draft
        right = 0
        while right < min(len(kept), len(new) - 1, len(chain)) and chain.tokens[right] == kept[right]:
            right += 1
        own = len(kept) - right
        self.steps.append(
            Step(
                tuple(kept),
                chain.sources[:right] + (TARGET,) * own,
                tuple(chain.chance(node) for node in range(right)) + (None,) * own,
                tuple(chain.match(node) for node in range(right)) + (NO_MATCH,) * own,
                Counter(chain.sources),
                1 + len(chain),
                draft_ms,
                forward_ms,
                together,
            )
        )
        if self.drafted:
            self._brought += max(RATE, 1.0 / (self._asked + 1)) * (right - self._brought)
            self._asked, self._silent = self._asked + 1, 0
        self.drafter.learn(kept)
        self._tokens += kept
        self.draft, self.drafted = NO_DRAFTS, False

    def catch_up(self, missed: Sequence[int]) -> None:
        """vLLM went on by these tokens, if any, without asking for drafts."""
        if missed:
            self.draft, self.drafted = NO_DRAFTS, False
        for token in missed:
            self.take([token], 0.0, 0.0, 1)

    def _up_to_end(self, new: Sequence[int]) -> list[int]:
        """The first tokens, to the one that ends the reply; sets `state` then."""
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
        """What the channel tells of it; of the steps those from `first` on."""
        sources, proposed, accepted = Counter[str](), Counter[str](), Counter[str]()
        for step in self.steps:
            sources.update(step.sources)
            proposed.update(step.proposed)
            accepted.update(source for source in step.sources if source != TARGET)
        behind = len(self.steps) - 1
        return {
            "state": self.state,
            "prompt_tokens": self._prompt,
            "tokens": len(self._tokens),
            "first": first,
            "next": max(first, len(self.steps)),
            "steps": [step.to_json() for step in self.steps[first:]],
            "tokens_per_forward": sum(len(step.tokens) for step in self.steps[1:]) / behind
            if behind > 0
            else None,
            "sources": sources,
            "proposed": proposed,
            "accepted": accepted,
            "draft_ms": round(sum(step.draft_ms for step in self.steps), 3),
        }
