"""Define frames: the state of a growing reply, or of a comparison, complete enough for a view to show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from hierchat.store.records import Measured, NewTurn

DESERVED_TOKENS = 64
"""From so many tokens on a reply's speed is compared: in shorter ones a few forwards decide, whose times scatter."""
ReplyPhase = Literal["waiting", "reading", "writing", "done", "calling"]
"""The last one: the tool that the reply called waits for the user, or works."""
Arm = Literal["first", "second"]
"""A side of a comparison; the second one stays in the chat."""


@dataclass(frozen=True, slots=True)
class Figures(Measured):
    """Measured figures of one reply so far; None for what was not measured."""

    tokens: int = 0
    tokens_per_second: float | None = None
    acceptance_rate: float | None = None
    """Accepted / proposed draft nodes."""
    acceptance: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Accepted / proposed draft nodes by source."""
    draft_ms: float | None = None
    """Milliseconds of drafting per forward;"""
    forward_ms: float | None = None
    """of the forward itself;"""
    verify_ms: float | None = None
    """and of choosing tokens and checking drafts behind it."""
    read_seconds: float | None = None
    total_seconds: float | None = None
    """From Send to the last token: waiting, reading the prompt and writing. None where nobody looked at the clock,"""
    waited_seconds: float | None = None
    """of these, what other replies took before and during this one,"""
    loading: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """and what it took until the model was there, by what was done meanwhile (SlotPhase)."""
    thought_seconds: float | None = None
    """Decoding time of what the model thought before it answered."""
    shares: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Source -> share of the reply's tokens; "target" is the model alone. Sums to 1."""
    seed: int | None = None
    """None where it was greedy: no seed matters then."""
    written: NewTurn | None = None
    """With what a stored reply was written; None while it is being written."""

    @property
    def whole_seconds(self) -> float:
        """Return `total_seconds`; of records without it, the time of reading and writing alone."""
        return self.seconds + (self.read_seconds or 0.0) if self.total_seconds is None else self.total_seconds

    @property
    def deserved_speedup(self) -> float | None:
        """Return the speed-up if its baseline was measured, the reply is long enough and anything was drafted."""
        deserved = self.baseline == "measured" and self.tokens >= DESERVED_TOKENS
        return self.speedup if deserved and self.acceptance_rate is not None else None


@dataclass(frozen=True, slots=True)
class Frame:
    """State of a reply at one moment. Every frame is complete: a view needs only the latest."""

    phase: ReplyPhase
    text: str = ""
    figures: Figures = Figures()
    prompt_read: int = 0
    prompt_tokens: int = 0
    context_tokens: int = 0
    context_limit: int = 0
    finish: str | None = None
    """engine.step.Finish, or "error"; set in the last frame."""
    notice: str | None = None
    """A sentence for the page, e.g. that old turns no longer fit the context window."""
    message_id: int | None = None
    """The stored reply; None while it is not stored (compare)."""
    ahead: int = 0
    """Replies that come before, in phase "waiting"."""
    above: int | None = None
    """The stored reply that it goes on below, where that called a tool."""
    name: str = ""
    """What this side of a comparison is called."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of comparing two replies. `sentence` is ready for the page."""

    identical: bool
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
