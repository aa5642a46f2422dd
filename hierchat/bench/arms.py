"""What is compared: ways of decoding the same prompts. Here those behind our own engine; peers.py has the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hierchat.bench.errors import unknown
from hierchat.chat.drafters import default_drafter, drafter_over
from hierchat.chat.host import Hosted
from hierchat.config import GenerationSettings
from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.history import HistorySource
from hierchat.engine.engine import common_prefix

VANILLA = "vanilla"
PEERS = ("transformers", "llama.cpp")

Drafting = Callable[[Hosted, HistorySource, int | None, Acceptance], Drafter]
"""Makes the drafter of one reply: of the model, the arm's history, the fixed width, if any, and what was learned."""

OWN: dict[str, Drafting | None] = {
    VANILLA: None,
    "context": lambda hosted, history, width, learned: drafter_over(
        hosted, [ContextSource()], width, learned
    ),
    "context+history": lambda hosted, history, width, learned: drafter_over(
        hosted, [ContextSource(), history], width, learned
    ),
    "hierchat": default_drafter,
}


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


class OwnArm:
    """Our engine, with a drafter per reply or, without one, plain decoding at its fastest."""

    def __init__(self, name: str, hosted: Hosted, width: int | None = None) -> None:
        self.name = name
        self._hosted = hosted
        self._drafting = OWN[name]
        self._width = width
        self._held: list[int] = []
        self.history = HistorySource()
        self._acceptance = Acceptance()  # of the arm's whole run, as the program keeps it

    def answer(self, prompt: Sequence[int], settings: GenerationSettings) -> Answer:
        drafter = self._drafting and self._drafting(self._hosted, self.history, self._width, self._acceptance)
        engine = self._hosted.engine
        self._find_own_slots(prompt)
        reply: list[int] = []
        sources: Counter[str] = Counter()
        forwards, draft_ms = 0, 0.0
        began = read = now = time.perf_counter()
        first: float | None = None
        for step in engine.generate(prompt, settings, drafter, padded=drafter is not None):
            now = time.perf_counter()
            if not step.tokens:
                read = now
                continue
            first = first or now
            reply += step.tokens
            sources.update(step.sources)
            forwards += 1
            draft_ms += step.draft_ms
        self._held = list(engine.target.tokens)
        return Answer(reply, now - read, (first or now) - began, forwards, draft_ms, dict(sources))

    def _find_own_slots(self, prompt: Sequence[int]) -> None:
        """All arms share the target's slots; none profits from what another read or wrote."""
        target = self._hosted.engine.target
        target.rollback(min(common_prefix(target.tokens, prompt), common_prefix(self._held, prompt)))

    def learn(self, reply: Sequence[int]) -> None:
        self.history.add(reply)

    def forget(self) -> None:
        self.history = HistorySource()

    def close(self) -> None:
        pass


def parse_arms(text: str) -> list[str]:
    """Names out of "A,B,...", each once. Raises BenchError with the nearest names."""
    known = (*OWN, *PEERS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise unknown("arm", name, known)
    if not names:
        raise unknown("arm", "", known)
    return names


def rotated(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """The order of arms in a turn of the run, counted from 0: another one leads each time. A further shift per round
    keeps the order from going in step with groups that take turns, too."""
    start = (turn + turn // len(arms)) % len(arms)
    return [*arms[start:], *arms[:start]]
