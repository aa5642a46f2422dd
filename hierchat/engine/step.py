"""The record that the engine yields: all that chat, ui and bench know of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from hierchat.drafting.tree import Match
from hierchat.engine.sampling.logprobs import TokenLogprob

TARGET = "target"
"""The source of a token that no draft proposed."""

Finish = Literal["end", "stop", "loop", "length", "context", "stopped"]
"""Why a reply ended: end-of-text token, stop string, it repeated itself, token limit, context full, or the user pressed
Stop."""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of the target, or one chunk of reading the prompt (then `tokens` is empty)."""

    tokens: tuple[int, ...] = ()
    """Committed tokens, in order."""
    sources: tuple[str, ...] = ()
    """Source of each committed token; TARGET for the bonus token."""
    matches: tuple[Match, ...] = ()
    """What each committed token was found by; none at all where nothing is known."""
    chances: tuple[float | None, ...] = ()
    """With which probability each was expected to be right, if all before it were; None where nothing was expected."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of each committed token; none at all where `settings.logprobs` does not ask for them."""
    proposed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Draft nodes verified in this forward, per source."""
    width: int = 0
    """Positions in the forward, padding not counted; 0 beside a `text`: nothing is known of forwards."""
    draft_ms: float = 0.0
    forward_ms: float = 0.0
    verify_ms: float = 0.0
    waited_ms: float = 0.0
    """What other replies took since this reply's last step."""
    together: int = 1
    """Replies that shared the forward; its milliseconds, and those of drafting and verifying, are of all of them."""
    prompt_read: int = 0
    """Prompt tokens whose keys and values are in the slots so far."""
    prompt_tokens: int = 0
    text: str | None = None
    """What these tokens add to the reply, from an engine elsewhere that alone can tell; None: they are decoded here."""
    notice: str = ""
    """A sentence for the user, to be told once, with the reply."""
    finish: Finish | None = None
    """Set on the last step of a reply only."""
