"""The result of a comparison: what was asked, how, what both sides wrote, when, and what that shows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hierchat.chat.frames import DESERVED_TOKENS, Arm, Figures, Verdict

ARMS: tuple[Arm, Arm] = ("first", "second")
_FIGURES = (
    "tokens", "seconds", "first_token_seconds", "tokens_per_second", "tokens_per_forward", "acceptance_rate",
    "acceptance", "draft_ms", "shares", "finish", "speedup", "baseline", "baseline_tokens_per_second",
)  # fmt: skip
Moment = tuple[int, int, int]
"""Milliseconds since this side began, tokens and characters that it had by then."""
MOST_MOMENTS = 600
"""Of one side, in what is stored: a long reply is replayed in coarser steps."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side, as it was run."""

    name: str
    model: str
    revision: str
    """Names the model's weights and their form."""
    backend: str
    configuration: Mapping[str, Any]
    settings: Mapping[str, Any]
    text: str
    figures: Figures
    moments: Sequence[Moment] = ()

    def record(self) -> dict[str, Any]:
        """For JSON."""
        figures = {name: getattr(self.figures, name) for name in _FIGURES}
        figures |= {name: dict(figures[name]) for name in ("acceptance", "shares")}
        kept = {name: getattr(self, name) for name in ("name", "model", "revision", "backend", "text")}
        return {
            **kept,
            "configuration": dict(self.configuration),
            "settings": dict(self.settings),
            "figures": figures,
            "moments": differences(self.moments),
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """What `record` made."""
        figures, moments = Figures(**record["figures"]), summed(record["moments"])
        return cls(**{**record, "figures": figures, "moments": moments})


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result; `id`: in the store, 0 where it is not there."""

    question: str
    sides: Mapping[Arm, Side]
    verdict: Verdict
    machine: str
    hierchat: str
    alone: bool
    """Whether the question was the first of its chat: then nothing else was in the prompt."""
    at: float = field(default_factory=time.time)
    id: int = 0

    @property
    def deserved_speedup(self) -> float | None:
        """Of the second side over the first, where both are long enough for it to be told."""
        long = all(side.figures.tokens >= DESERVED_TOKENS for side in self.sides.values())
        return self.verdict.speedup if long else None

    def record(self) -> dict[str, Any]:
        """All but question, time and id, for JSON."""
        verdict = {name: getattr(self.verdict, name) for name in Verdict.__slots__}
        return {
            "sides": {arm: self.sides[arm].record() for arm in ARMS},
            "verdict": verdict,
            "machine": self.machine,
            "hierchat": self.hierchat,
            "alone": self.alone,
        }

    def to_json(self) -> str:
        """The same, as the store keeps it."""
        return json.dumps(self.record(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, id: int, question: str, at: float, text: str) -> Self:
        """What `to_json` made."""
        record = json.loads(text)
        sides = {arm: Side.of(record["sides"][arm]) for arm in ARMS}
        return cls(
            **{**record, "sides": sides, "verdict": Verdict(**record["verdict"])},
            question=question,
            at=at,
            id=id,
        )


def differences(moments: Sequence[Moment]) -> list[list[int]]:
    """Each moment as what changed since the one before, at most MOST_MOMENTS of them."""
    step = -(-len(moments) // MOST_MOMENTS) or 1
    kept = [*moments[:-1:step], *moments[-1:]]
    before = [(0, 0, 0), *kept]
    return [
        [now - then for now, then in zip(at, last, strict=True)]
        for at, last in zip(kept, before, strict=False)
    ]


def summed(changes: Sequence[Sequence[int]]) -> list[Moment]:
    """What `differences` made."""
    moments: list[Moment] = []
    ms = tokens = characters = 0
    for more_ms, more_tokens, more_characters in changes:
        ms, tokens, characters = ms + more_ms, tokens + more_tokens, characters + more_characters
        moments.append((ms, tokens, characters))
    return moments
