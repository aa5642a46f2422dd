"""The engine and the costs that decide how much is drafted."""

from __future__ import annotations

import pytest

from hierchat.config import GenerationSettings
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.source import Source
from tests.testing.tiny import fresh_steps, random_tokens, tiny_engine, tokens_of

PROMPT = random_tokens(20) * 3


def test_latency_learns_from_drafted_replies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    noted: list[tuple[int, int]] = []
    monkeypatch.setattr(engine.latency, "note", lambda width, context, ms: noted.append((width, context)))
    wanted = GenerationSettings(max_new_tokens=12)
    fresh_steps(engine, PROMPT, wanted)
    assert noted == []
    steps = [step for step in fresh_steps(engine, PROMPT, wanted, Drafter()) if step.tokens]
    before = [sum(len(step.tokens) for step in steps[:number]) for number in range(len(steps))]
    assert noted == [(step.width, len(PROMPT) + tokens) for step, tokens in zip(steps, before, strict=True)]


def test_the_size_of_drafts_follows_costs() -> None:
    class Dear:
        def step_ms(self, context: int) -> list[float]:
            return [5.0 * width for width in range(1, 33)]

    engine = tiny_engine()
    wanted = GenerationSettings(max_new_tokens=30)
    reply = tokens_of(fresh_steps(engine, PROMPT, wanted))
    for drafter, widths in (
        (Drafter([Source.of([[*PROMPT, *reply]] * 3)], latency=Dear()), {1}),
        (Drafter([Source.of([[*PROMPT, *reply]] * 3)], latency=Dear(), width=4), {4}),
    ):
        steps = fresh_steps(engine, PROMPT, wanted, drafter)
        assert tokens_of(steps) == reply
        assert {step.width for step in steps[:-1] if step.tokens} == widths
