"""One way of decoding, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hierchat.config import GenerationSettings


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply. What a peer does not tell is None."""

    reply: list[int]
    seconds: float
    """Decoding: from the prompt being read but for its last token to the last token."""
    first_seconds: float
    """From the request to the first token, reading the prompt included."""
    forwards: int | None = None
    draft_ms: float | None = None
    sources: dict[str, int] = field(default_factory=dict)
    """Tokens of the reply by source."""
    peak_mb: float | None = None
    """The most memory that its process held so far; our own arms share one."""
    expected_ms: float | None = None
    """Per token, of the plan of draft models that was fixed for the arm: said before the reply began."""
    step_ms: float | None = None
    """Per token, of the steps alone: without what draft models read before they could draft."""


class Arm(Protocol):
    """One way of decoding."""

    name: str

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        """The reply to a prompt. Whatever it raises, the arm is out and the others go on."""
        ...

    def learn(self, reply: Sequence[int]) -> None:
        """The reply is finished and becomes history."""
        ...

    def forget(self) -> None:
        """History starts anew."""
        ...

    def close(self) -> None: ...


def rotated(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """The order of arms in a turn of the run, counted from 0: another one leads each time. A further shift per round
    keeps the order from going in step with groups that take turns, too."""
    start = (turn + turn // len(arms)) % len(arms)
    return [*arms[start:], *arms[:start]]
