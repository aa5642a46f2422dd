"""What drafts cost, and what a token is worth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.drafting.price import Free, Price

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
    price = Price(Steps(costs))
    assert price.most == len(costs) - 1
    assert price.extra.tolist() == [ms - costs[0] for ms in costs]
    for drafts in range(price.most):
        onward = [
            (price.extra[more] - price.extra[drafts]) / (more - drafts)
            for more in range(drafts + 1, len(costs))
        ]
        assert price.onward[drafts] == pytest.approx(min(onward))


def test_a_token_is_worth_the_present_pace() -> None:
    price = Price(Steps([5.0, 6.0, 7.0, 8.0]))
    assert price.token_ms == 5.0
    for _ in range(20):
        price.note(4, 4)
    assert price.token_ms == pytest.approx(2.0, rel=0.01)
    for _ in range(20):
        price.note(1, 1)
    assert price.token_ms == pytest.approx(5.0, rel=0.05)
    price.note(4, 4)
    price.begin(0)
    assert price.token_ms == 5.0


@settings(deadline=None)
@given(
    noted=st.lists(st.integers(1, 8).flatmap(lambda width: st.tuples(st.just(width), st.integers(1, width))))
)
def test_a_token_is_never_worth_more_than_a_plain_step(noted: list[tuple[int, int]]) -> None:
    price = Price(Steps([5.0 + rows for rows in range(8)]))
    for width, tokens in noted:
        price.note(width, tokens)
        assert 0.0 < price.token_ms <= 5.0


def test_costs_follow_the_context() -> None:
    class Rising:
        def step_ms(self, context: int) -> list[float]:
            return [5.0, 6.0 + context]

    price = Price(Rising())
    assert price.extra.tolist() == [0.0, 1.0]
    price.look(5)
    assert price.extra.tolist() == [0.0, 6.0]


def test_a_fixed_width_is_free_up_to_there() -> None:
    price = Price(Free(4))
    assert price.most == 3
    assert price.extra.tolist() == [0.0] * 4
    assert Price(Free(1)).most == 0
