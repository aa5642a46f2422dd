"""What chat, server and bench know of an engine: steps of a reply, and what it may be able to measure."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import Protocol, runtime_checkable

from hierchat.config import GenerationSettings
from hierchat.drafting.proposer import Proposer
from hierchat.engine.step import Step


class Engine(Protocol):
    """Generates the tokens of replies. A local one is local.LocalEngine."""

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its reply together."""
        ...

    @property
    def exact(self) -> bool | None:
        """Whether drafts cannot change a token; None: not known."""
        ...

    @property
    def backend(self) -> str:
        """What computes it, for the reader of a report."""
        ...

    @property
    def places(self) -> int:
        """Replies that may be in progress at once."""
        ...

    def generate(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        drafter: Proposer | None = None,
        stop: threading.Event | None = None,
        *,
        padded: bool = True,
        begun: int = 0,
        user: int | None = None,
    ) -> Generator[Step, None, None]:
        """Steps of one reply; the last one has `finish`. `stop` is polled between steps. padded=False: without drafts,
        the fastest plain decoding that the backend can do. `begun`: the last so many of `prompt_ids` are the reply so
        far, which goes on as it would have by itself. `user`: whose text it is; what was read for one user is never
        used for another. Called from several threads, up to `places` at once."""
        ...


@runtime_checkable
class MeasuresBaseline(Protocol):
    """An engine that can time its own plain decoding."""

    def measure_vanilla(self, settings: GenerationSettings, forwards: int = 3) -> float:
        """Milliseconds of a step of plain decoding now: median of `forwards`. Nothing is committed."""
        ...


@runtime_checkable
class LearnsElsewhere(Protocol):
    """An engine that keeps the replies that it wrote, outside of our store, and drafts from them for the same user."""

    @property
    def place(self) -> str:
        """Where it keeps them."""
        ...

    def telling(
        self, user: str, reply: str, *, drafts: bool, learns: bool = True, anew: bool = False
    ) -> Engine:
        """The same engine for one reply: whose it is and what it is called, both empty where nothing of it may be kept
        or draft; whether anything may; whether it is kept. `anew`: its prompt is read as if nothing had been before, so
        that it can be compared with another reply to it."""
        ...

    def forget(self, user: str, replies: Sequence[str]) -> None:
        """Have nothing left of these, and draft from them no more. Raises ServerError where that is not certain."""
        ...


@runtime_checkable
class ContinuesText(Protocol):
    """An engine elsewhere, which takes messages. With `begun` the last message of its prompt is the reply so far, as
    text."""

    @property
    def continues(self) -> bool:
        """Whether it goes on with such a message."""
        ...


@runtime_checkable
class TellsTexts(Protocol):
    """An engine elsewhere that tells the model's own tokens, and what they are in text."""

    def texts(self, tokens: Sequence[int], lengths: Sequence[int]) -> list[str]:
        """The text of each run of so many tokens; special tokens are text, and what is left of a character that two
        runs share is U+FFFD. Raises ServerError where that is not told."""
        ...


@runtime_checkable
class Compares(Protocol):
    """An engine on which plain and speculative decoding can be compared from the same state."""

    def shared(self, prompt_ids: Sequence[int], user: int | None = None) -> int:
        """Tokens of a prompt that need not be read for this user, since they are held."""
        ...

    def forget(self, prompt_ids: Sequence[int], kept: int = 0) -> None:
        """Of this prompt hold no more than the first `kept` tokens."""
        ...

    def logit_gap(self, context: Sequence[int], first: int, second: int) -> float:
        """Difference of two tokens' raw logits after `context`."""
        ...
