"""The replay that drafting is tuned with."""

from __future__ import annotations

import pytest

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from tests.drafting.replay import ENGINES, Costs, Trace, replay, replay_all

COPY: Trace = {"category": "copy", "prompt": list(range(60)), "reply": [5, 6, *range(7, 60)]}
NEW: Trace = {"category": "new", "prompt": list(range(60)), "reply": list(range(100, 150))}


def drafter(costs: Costs) -> Drafter:
    return Drafter([ContextSource()], Acceptance(), costs)


@pytest.mark.parametrize("name", ENGINES)
def test_a_copy_takes_few_steps_and_new_text_one_per_token(name: str) -> None:
    costs = ENGINES[name]
    copied, written = replay(drafter(costs), COPY, costs), replay(drafter(costs), NEW, costs)
    assert (copied.tokens, written.tokens) == (55, 50)
    assert copied.steps < 20
    assert (written.steps, written.drafts) == (50, 0)
    assert written.ms == pytest.approx(50 * costs.step_ms(0)[0] + written.drafting_ms)


def test_history_helps_with_what_was_written_before() -> None:
    costs = ENGINES["5 + 0.8 per row"]
    totals = replay_all([NEW, NEW], costs, Acceptance(), history=True)
    assert totals["all"].tokens == totals["new"].tokens == 100
    assert totals["all"].steps < 80
