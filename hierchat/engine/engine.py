"""Define the Engine contract: steps of a reply, optional abilities, and the errors of a forward."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from hierchat.config import GenerationSettings
from hierchat.drafting.draft_tree import Match
from hierchat.drafting.payoff import Payoff
from hierchat.drafting.proposer import Proposer

TARGET = "target"
"""The source of a token that no draft proposed."""

Finish = Literal["end", "stop", "loop", "length", "context", "stopped"]
"""Why a reply ended: end-of-text token, stop string, it repeated itself, token limit, context full, or Stop."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one forward of the target, or of reading one chunk of the prompt (then `tokens` is empty)."""

    tokens: tuple[int, ...] = ()
    """Committed tokens, in order."""
    sources: tuple[str, ...] = ()
    """Source of each committed token; TARGET for the bonus token."""
    matches: tuple[Match, ...] = ()
    """Match of each committed token, or an empty tuple if nothing is known."""
    chances: tuple[float | None, ...] = ()
    """Estimated probability that each was right, if all before it were; None where nothing was estimated."""
    proposed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Draft nodes verified in this forward, per source."""
    width: int = 0
    """Positions in the forward without padding; 0 beside a `text`, where nothing is known of forwards."""
    draft_ms: float = 0.0
    forward_ms: float = 0.0
    verify_ms: float = 0.0
    waited_ms: float = 0.0
    """Milliseconds that other replies took since this reply's last step."""
    batch_size: int = 1
    """Requests in the forward; its milliseconds, and those of drafting and verifying, are of all of them."""
    prompt_read: int = 0
    """Prompt tokens whose keys and values are in the slots so far."""
    prompt_tokens: int = 0
    text: str | None = None
    """What these tokens add to the reply, from a remote engine that alone can decode them; None: decode them here."""
    notice: str = ""
    """A sentence to show the user once, with the reply."""
    finish: Finish | None = None
    """Why the reply ended; None but on its last step."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Settings and text of one reply to generate. Without a drafter this is vanilla decoding."""

    prompt_ids: Sequence[int]
    settings: GenerationSettings
    drafter: Proposer | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends the reply; looked at between steps."""
    padded: bool = True
    """False: without drafts, the fastest plain decoding that the backend can do."""
    begun: int = 0
    """Number of final `prompt_ids` that are the reply so far; `settings.max_new_tokens` includes them."""
    user: int | None = None
    """Whose text it is; what was read for one user is never used for another."""
    chat: int | None = None
    """The chat that the text belongs to; its deletion empties the slots. None: it belongs to none."""
    spare: bool = False
    """Whether it is written in spare time: it stops before its next forward, and leaves its slots empty."""
    payoff: Payoff | None = None
    """Estimate of the gain of drafting, from earlier replies. Without a gain nothing is drafted. None: always draft."""


class Engine(Protocol):
    """Generate the tokens of replies: local.LocalEngine here, openai_engine.RemoteEngine over a server."""

    @property
    def context_length(self) -> int:
        """Return how many tokens a prompt and its reply may have together."""

    @property
    def exact(self) -> bool | None:
        """Tell whether drafts cannot change a token; None: not known."""

    @property
    def backend(self) -> str:
        """Return the name of what computes it, for the reader of a report."""

    @property
    def places(self) -> int:
        """Return how many replies may be in progress at once."""

    def generate(self, request: GenerationRequest) -> Generator[Step, None, None]:
        """Yield the steps of one reply; the last has `finish`. Called from several threads, up to `places` at once."""


_SIGNS = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed", "bad_alloc")
"""What the RuntimeErrors of torch, CUDA and its libraries hold where memory ran out."""


class OutOfMemory(Exception):
    """Memory ran out in a forward; what the target had committed before stands."""


@contextmanager
def clear_memory_errors() -> Iterator[None]:
    """Raise OutOfMemory in place of what numpy, torch or CUDA raise where memory runs out."""
    try:
        yield
    except OutOfMemory:
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error).lower() for sign in _SIGNS):
            raise
        raise OutOfMemory(
            "Memory ran out while the model was computing. Close other programs, start a new, shorter conversation, "
            "set a shorter context_length for this model in models.yaml, or choose a smaller model."
        ) from error
