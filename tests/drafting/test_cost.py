"""What drafts cost, and what a token is worth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting.draft_tree import DraftCost, FreeRows

steps = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=16).map(
    lambda rises: [5.0 + sum(rises[:rows]) for rows in range(len(rises) + 1)]
)


class Steps:
    """Milliseconds of a step over 1, 2, ... positions, as a list."""

    def __init__(self, step_ms: Sequence[float]) -> None:
        self._step_ms = step_ms

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


@settings(deadline=None)
@given(costs=steps)
def test_no_way_on_is_cheaper_than_the_least(costs: list[float]) -> None:
    cost = DraftCost(Steps(costs))
    assert cost.most == len(costs) - 1
    assert cost.extra.tolist() == [ms - costs[0] for ms in costs]
    for drafts in range(cost.most):
        onward = [
            (cost.extra[more] - cost.extra[drafts]) / (more - drafts)
            for more in range(drafts + 1, len(costs))
        ]
        assert cost.onward[drafts] == pytest.approx(min(onward))


def test_a_token_is_worth_the_present_pace() -> None:
    cost = DraftCost(Steps([5.0, 6.0, 7.0, 8.0]))
    assert cost.token_ms == 5.0
    for _ in range(20):
        cost.note(4, 4)
    assert cost.token_ms == pytest.approx(2.0, rel=0.01)
    for _ in range(20):
        cost.note(1, 1)
    assert cost.token_ms == pytest.approx(5.0, rel=0.05)
    cost.note(4, 4)
    cost.begin(0)
    assert cost.token_ms == 5.0


@settings(deadline=None)
@given(
    noted=st.lists(st.integers(1, 8).flatmap(lambda width: st.tuples(st.just(width), st.integers(1, width))))
)
def test_a_token_is_never_worth_more_than_a_plain_step(noted: list[tuple[int, int]]) -> None:
    cost = DraftCost(Steps([5.0 + rows for rows in range(8)]))
    for width, tokens in noted:
        cost.note(width, tokens)
        assert 0.0 < cost.token_ms <= 5.0


def test_costs_follow_the_context() -> None:
    class Rising:
        def step_ms(self, context: int) -> list[float]:
            return [5.0, 6.0 + context]

    cost = DraftCost(Rising())
    assert cost.extra.tolist() == [0.0, 1.0]
    cost.look(5)
    assert cost.extra.tolist() == [0.0, 6.0]


def test_a_fixed_width_is_free_up_to_there() -> None:
    cost = DraftCost(FreeRows(4))
    assert cost.most == 3
    assert cost.extra.tolist() == [0.0] * 4
    assert DraftCost(FreeRows(1)).most == 0
