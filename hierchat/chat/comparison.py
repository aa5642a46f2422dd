"""Describe a comparison: how each side is configured, what both wrote, and the verdict, as shown and as stored."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from hierchat.chat.frames import DESERVED_TOKENS, Arm, Figures, Frame
from hierchat.language import _, later

WITHOUT, WITH = later("Without drafts"), later("With drafts")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Choice of how one side of a comparison answers; an empty name is the loaded model."""

    model: str = ""
    drafts: bool = True

    @property
    def name(self) -> str:
        drafts = "" if self.drafts and self.model else _(WITH if self.drafts else WITHOUT)
        return ", ".join(filter(None, (self.model, drafts)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Read a configuration from a form or a file; missing values are the defaults."""
        earlier = given.get("databases") != "none" or bool(given.get("draft_models", True))
        return cls(str(given.get("model") or ""), bool(given.get("drafts", earlier)))


Pair = Mapping[Arm, Configuration]
USUAL: Pair = {
    "first": Configuration(drafts=False),
    "second": Configuration(),
}
"""Without drafts, against with them."""


def names(pair: Pair) -> dict[Arm, str]:
    """Return the names of both sides, numbered if they are equal."""
    first, second = pair["first"].name, pair["second"].name
    if first == second:
        return {"first": f"{first} (1)", "second": f"{second} (2)"}
    return {"first": first, "second": second}


# The result: what both sides wrote, and what that shows.
ARMS: tuple[Arm, Arm] = ("first", "second")
_FIGURES = (
    "tokens", "seconds", "first_token_seconds", "tokens_per_second", "tokens_per_forward", "acceptance_rate",
    "acceptance", "draft_ms", "shares", "finish", "speedup", "baseline", "baseline_tokens_per_second",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of comparing two replies. `sentence` is ready for the page."""

    identical: bool
    tokens: int
    """Tokens compared, or the index of the first difference when not identical."""
    logit_gap: float | None
    """Between the two choices at the first difference, in the target's own logits."""
    speedup: float | None
    sentence: str
    exact: bool | None = None
    """Whether the target passed its self-test: then drafts cannot change a token. None: not known."""
    precise: str = ""
    """Whether drafts can change a token, in a sentence for the details."""
    others: float | None = None
    """Share of the processor that other programs used while the sides ran, the larger one; None: nobody looked."""


@dataclass(frozen=True, slots=True)
class Side:
    """Record of one side of a comparison: how it was run, its text and its figures."""

    name: str
    model: str
    revision: str
    """Names the model's weights and their form."""
    backend: str
    configuration: Configuration
    settings: Mapping[str, Any]
    text: str
    figures: Figures

    def record(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("name", "model", "revision", "backend", "text")}
        kept |= {"configuration": asdict(self.configuration), "settings": dict(self.settings)}
        figures = {name: getattr(self.figures, name) for name in _FIGURES}
        figures |= {name: dict(figures[name]) for name in ("acceptance", "shares")}
        return {**kept, "figures": figures}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read what `record` returned; earlier versions also stored the course of the reply as `moments`."""
        kept = {name: value for name, value in record.items() if name != "moments"}
        figures, chosen = Figures(**kept["figures"]), Configuration.of(kept["configuration"])
        return cls(**{**kept, "figures": figures, "configuration": chosen})


@dataclass(frozen=True, slots=True)
class Comparison:
    """Record of a finished comparison; `id`: in the store, 0 if it is not stored."""

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
        """Return the second side's speed-up over the first, if both are long enough to tell."""
        long = all(side.figures.tokens >= DESERVED_TOKENS for side in self.sides.values())
        return self.verdict.speedup if long else None

    def record(self) -> dict[str, Any]:
        return {
            "sides": {arm: self.sides[arm].record() for arm in ARMS},
            "verdict": asdict(self.verdict),
            "machine": self.machine,
            "hierchat": self.hierchat,
            "alone": self.alone,
        }

    def to_json(self) -> str:
        return json.dumps(self.record(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, id: int, question: str, at: float, text: str) -> Self:
        record = json.loads(text)
        sides = {arm: Side.of(record["sides"][arm]) for arm in ARMS}
        return cls(
            **{**record, "sides": sides, "verdict": Verdict(**record["verdict"])},
            question=question,
            at=at,
            id=id,
        )


@dataclass(frozen=True, slots=True)
class CompareFrame:
    """Frames of both sides of a comparison; a side that has not started yet is in phase "waiting"."""

    arms: Mapping[Arm, Frame]
    running: Arm | None
    verdict: Verdict | None = None
    result: Comparison | None = None
    """In the last one, where both sides came to their end."""
