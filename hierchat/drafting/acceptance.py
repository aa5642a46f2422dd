"""How likely a token is to be accepted as a draft, learned from every step.

The log-odds that a token follows, given that all before it was accepted, are a sum over what its candidates show:

    bias + length * ln(tokens matched) + rival * ln(1 + tokens matched by the best candidate for another token)
         + share * ln(share of the votes) + count * ln(candidates) + newest (0 or 1)
         + recent * (how often the source's first choice has been right of late)
         + token * (how much better or worse than expected this very token has fared)

A vote counts twice as much per further token matched. Each source has weights of its own: they start from a prior,
move with every token that turns out right or wrong, and drift back, so that what was long ago is forgotten. Lessons
come from all that was considered, drafted or not: a source that is no longer drafted from can win back its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Self

from hierchat.drafting.source import Candidate

Weights = tuple[float, ...]

# Logistic regressions over recorded replies of the default model to half of a set of Spec-Bench questions
# (python -m tests.drafting.fit), in the order of the formula above.
PRIORS: dict[str, Weights] = {
    "context": (-1.21, 1.11, -0.81, 0.66, 0.65, 0.27, 0.67, 1.64),
    "history": (-2.43, 1.01, -0.78, 0.52, 0.17, 0.45, 1.46, 1.72),
}
ANY_PRIOR = PRIORS["history"]
"""For a source that nothing is known of yet: the more cautious one."""
RATE = 0.03
"""How far a lesson moves the weights."""
FORGET = 0.002
"""Part of the way back to the prior with each lesson: half of it in 350."""
RECENT_RATE = 0.1
RECENT_PRIOR = 0.3
TOKEN_FORGET = 0.01
LEAST_SHARE = 0.05
"""Tokens with fewer of the votes are not considered."""
MOST = 0.999
"""What siblings sum to at most: something else may always follow."""

_LN = [0.0, *(math.log(n) for n in range(1, 1024))]
_VOTES = [2.0 ** min(length - 1, 6) for length in range(1024)]


@dataclass(slots=True)
class Choice:
    """A token that may follow, and what speaks for it."""

    token: int
    source: str
    chance: float
    """Estimated probability that it is accepted, given that its parent was."""
    candidates: list[Candidate]
    """Those that propose it, to be continued."""
    features: tuple[float, ...]
    alone: float
    """The estimate before siblings were scaled to their sum."""


@dataclass(slots=True)
class _Source:
    prior: Weights
    weights: Sequence[float]
    recent: float = RECENT_PRIOR


class _Group:
    """Candidates that propose the same token."""

    __slots__ = ("candidates", "length", "newest", "votes")

    def __init__(self, newest: bool) -> None:
        self.votes, self.length, self.newest = 0.0, 0, float(newest)
        self.candidates: list[Candidate] = []


class Acceptance:
    """What is known about the sources of one user and model. Keep it from reply to reply."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._tokens: dict[int, tuple[float, float]] = {}
        """Sum of a token's errors, and of the variances that were expected of them."""

    def judge(self, candidates: Sequence[Candidate], depth: int) -> list[Choice]:
        """What may stand at `depth` of the candidates, which agree on all before. They come from the highest to the
        lowest locality and newest first; a token belongs to the first source that proposes it."""
        groups: dict[int, _Group] = {}
        total, seen = 0.0, ""
        for candidate in candidates:
            tokens, source, length = candidate
            if depth >= len(tokens):
                continue
            length += depth
            group = groups.get(tokens[depth])
            if group is None:
                group = groups[tokens[depth]] = _Group(source != seen)
            seen = source
            vote = _VOTES[length]
            total += vote
            group.votes += vote
            group.candidates.append(candidate)
            if length > group.length:
                group.length = length
        longest = second = 0
        for group in groups.values():
            if group.length > longest:
                longest, second = group.length, longest
            elif group.length > second:
                second = group.length
        choices, chances = [], 0.0
        for token, group in groups.items():
            share = group.votes / total
            if share < LEAST_SHARE:
                continue
            source = group.candidates[0].source
            held = self._sources.get(source) or self._meet(source)
            errors, variances = self._tokens.get(token, (0.0, 0.0))
            features = (
                1.0,
                _LN[group.length],
                _LN[1 + (second if group.length == longest else longest)],
                math.log(share),
                _LN[len(group.candidates)],
                group.newest,
                held.recent,
                errors / (1.0 + variances),
            )
            chance = 1.0 / (1.0 + math.exp(min(-sum(map(mul, held.weights, features)), 50.0)))
            chances += chance
            choices.append(Choice(token, source, chance, group.candidates, features, chance))
        if chances > MOST:
            for choice in choices:
                choice.chance *= MOST / chances
        return choices

    def learn(self, choices: Sequence[Choice], token: int, *, first: bool) -> None:
        """`token` followed where these were considered. `first`: directly behind the committed text."""
        best: dict[str, Choice] = {}
        for choice in choices:
            held = self._sources[choice.source]
            error = (choice.token == token) - choice.alone
            held.weights = [
                weight + RATE * error * feature - FORGET * (weight - prior)
                for weight, feature, prior in zip(held.weights, choice.features, held.prior, strict=True)
            ]
            errors, variances = self._tokens.get(choice.token, (0.0, 0.0))
            self._tokens[choice.token] = (
                (1.0 - TOKEN_FORGET) * errors + error,
                (1.0 - TOKEN_FORGET) * variances + choice.alone * (1.0 - choice.alone),
            )
            if choice.source not in best or choice.alone > best[choice.source].alone:
                best[choice.source] = choice
        if first:
            for source, choice in best.items():
                held = self._sources[source]
                held.recent += RECENT_RATE * ((choice.token == token) - held.recent)

    def to_bytes(self) -> bytes:
        """What was learned."""
        sources = {name: [list(held.weights), held.recent] for name, held in self._sources.items()}
        return json.dumps({"sources": sources, "tokens": list(self._tokens.items())}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What to_bytes wrote. Raises ValueError where it is damaged."""
        made = cls()
        try:
            read = json.loads(data)
            for name, (weights, recent) in read["sources"].items():
                held = made._meet(name)
                if len(weights) != len(held.prior) or not all(map(math.isfinite, [*weights, recent])):
                    raise ValueError(f"{len(weights)} weights")
                held.weights, held.recent = weights, recent
            made._tokens = {token: (errors, variances) for token, (errors, variances) in read["tokens"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("Stored acceptance is damaged.") from error
        return made

    def _meet(self, source: str) -> _Source:
        prior = PRIORS.get(source, ANY_PRIOR)
        held = self._sources[source] = _Source(prior, prior)
        return held
