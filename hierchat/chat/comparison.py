"""Describe a comparison: how each side is configured, what both wrote, and the verdict, as shown and as stored."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Self, get_args

from pydantic import ValidationError

from hierchat.chat.frames import DESERVED_TOKENS, Arm, Figures, Frame
from hierchat.config import GenerationSettings
from hierchat.language import _, later
from hierchat.runtime.drafters import ALL, Databases, Drafting

# One side of a comparison: which model, what drafts for it, and how it is sampled.
FROM = {
    "none": later("nothing"),
    "chat": later("this chat"),
    "replies": later("this chat and your earlier ones"),
    "texts": later("this chat, your earlier ones and texts"),
}
"""What `Databases` are called on the page."""
WITHOUT, WITH = later("Without drafts"), later("With drafts")


class WrongConfiguration(ValueError):
    """Raised for values that make no configuration of a comparison. The message is for the page."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """How one side of a comparison answers. None and an empty name: as it is in force."""

    model: str = ""
    drafting: Drafting = field(default=ALL)
    temperature: float | None = None
    seed: int | None = None

    def settings(self, now: GenerationSettings) -> GenerationSettings:
        """Return the settings in force with what this side changes. Raises WrongConfiguration."""
        changed = {"temperature": self.temperature, "seed": self.seed}
        given = {name: value for name, value in changed.items() if value is not None}
        try:
            return GenerationSettings(**{**now.model_dump(), **given})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            limit = _("between 0 and 10") if name == "temperature" else _("a whole number, at least 0")
            raise WrongConfiguration(
                _("The {name} of a comparison must be {limit}.").format(name=name, limit=limit)
            ) from error

    @property
    def name(self) -> str:
        """Return a name for the eye: in what the side differs from the settings in force."""
        drafting = self.drafting
        parts = [self.model] if self.model else []
        if drafting.nothing:
            parts.append(_(WITHOUT))
        elif drafting.databases == "none":
            parts.append(_("Drafts from draft models alone"))
        elif drafting != ALL:
            models = "" if drafting.draft_models else _(", no draft models")
            parts.append(
                _("Drafts from {texts}{models}").format(texts=_(FROM[drafting.databases]), models=models)
            )
        if self.temperature is not None:
            parts.append(_("temperature {temperature:g}").format(temperature=self.temperature))
        if self.seed is not None:
            parts.append(_("seed {seed}").format(seed=self.seed))
        return ", ".join(parts) or _(WITH)

    def record(self) -> dict[str, Any]:
        """Return the configuration as a dict for JSON, which `configuration` reads again."""
        sampled = {"temperature": self.temperature, "seed": self.seed}
        return {"model": self.model, **asdict(self.drafting), **sampled}


Pair = Mapping[Arm, Configuration]
USUAL: Pair = {
    "first": Configuration(drafting=Drafting("none", draft_models=False)),
    "second": Configuration(),
}
"""Without drafts, against with them."""


def configuration(given: Mapping[str, Any]) -> Configuration:
    """Read a configuration from a form or a file; what is missing is as in force. Raises WrongConfiguration."""
    databases: Databases = given.get("databases", "texts")
    if not isinstance(databases, str) or databases not in get_args(Databases):
        raise WrongConfiguration(_("A comparison drafts from nothing, this chat, earlier chats or texts."))
    temperature, seed = given.get("temperature"), given.get("seed")
    try:
        made = Configuration(
            str(given.get("model") or ""),
            Drafting(databases, bool(given.get("draft_models", True))),
            None if temperature in (None, "") else float(str(temperature)),
            None if seed in (None, "") else int(str(seed)),
        )
    except ValueError as error:
        raise WrongConfiguration(
            _("Temperature and seed of a comparison must be numbers, the seed a whole one.")
        ) from error
    made.settings(GenerationSettings())
    return made


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
Moment = tuple[int, int, int]
"""Milliseconds since this side began, tokens and characters that it had by then."""
MOST_MOMENTS = 600
"""Of one side, in what is stored: a long reply is replayed in coarser steps."""


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
    configuration: Mapping[str, Any]
    settings: Mapping[str, Any]
    text: str
    figures: Figures
    moments: Sequence[Moment] = ()

    def record(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("name", "model", "revision", "backend", "text")}
        kept |= {name: dict(getattr(self, name)) for name in ("configuration", "settings")}
        figures = {name: getattr(self.figures, name) for name in _FIGURES}
        figures |= {name: dict(figures[name]) for name in ("acceptance", "shares")}
        return {**kept, "figures": figures, "moments": differences(self.moments)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        figures, moments = Figures(**record["figures"]), summed(record["moments"])
        return cls(**{**record, "figures": figures, "moments": moments})


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


def differences(moments: Sequence[Moment]) -> list[list[int]]:
    """Encode moments (milliseconds, tokens, characters) as differences to the one before, at most MOST_MOMENTS."""
    step = -(-len(moments) // MOST_MOMENTS) or 1
    kept = [*moments[:-1:step], *moments[-1:]]
    pairs = pairwise([(0, 0, 0), *kept])
    return [[now - then for then, now in zip(before, at, strict=True)] for before, at in pairs]


def summed(changes: Sequence[Sequence[int]]) -> list[Moment]:
    """Decode moments (milliseconds, tokens, characters) from their `differences`."""
    columns = (accumulate(column) for column in zip(*changes, strict=True))
    return list(zip(*columns, strict=True))
