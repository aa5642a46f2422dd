"""Describe a comparison: the configuration of each side, the frames of both, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hierchat.chat.frames import Arm, Frame
from hierchat.language import _, later

WITHOUT, WITH = later("Without drafts"), later("With drafts")
ARMS: tuple[Arm, Arm] = ("first", "second")


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
        """Read a configuration from a form; missing values are the defaults."""
        return cls(str(given.get("model") or ""), bool(given.get("drafts", True)))


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of comparing two replies. `sentence` is ready for the page."""

    identical: bool
    tokens: int
    """Tokens compared, or the index of the first difference when not identical."""
    speedup: float | None
    sentence: str
    exact: bool | None = None
    """Whether the target passed its self-test: then drafts cannot change a token. None: not known."""


@dataclass(frozen=True, slots=True)
class CompareFrame:
    """Frames of both sides of a comparison; a side that has not started yet is in phase "waiting"."""

    arms: Mapping[Arm, Frame]
    running: Arm | None
    verdict: Verdict | None = None
    """Verdict in the last frame, if no side failed."""
