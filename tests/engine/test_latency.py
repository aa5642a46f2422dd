"""What is learned of a step's cost, from forwards whose cost is known."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_cost import WIDEST, LatencyCurve
from hierchat.engine.local import PROBES, measure
from tests.testing.tiny import random_tokens, tiny_target

Cost = Callable[[int, int], float]


def line(width: int, context: int) -> float:
    return 5.0 + 0.8 * (width - 1)


def rising(width: int, context: int) -> float:
    return 5.0 + 0.8 * (width - 1) + context / 1000 * (0.5 + 0.15 * (width - 1))


def probed(cost: Cost, curve: LatencyCurve | None = None) -> LatencyCurve:
    """As measured after loading."""
    curve = curve or LatencyCurve()
    for width in PROBES:
        curve.note(width, 0, cost(width, 0))
    return curve


def fresh(curve: LatencyCurve, context: int = 0) -> Sequence[float]:
    """The curve as it is now."""
    curve.step_ms(context + 1000)
    return curve.step_ms(context)


def run(curve: LatencyCurve, cost: Cost, steps: int, widths: Sequence[int], outliers: float = 0.0) -> None:
    """Steps with 3 % of noise, some of them three times as slow as they should be."""
    random = np.random.default_rng(0)
    for context in range(steps):
        width = int(random.choice(widths))
        slow = 3.0 if random.random() < outliers else 1.0
        curve.note(width, context, cost(width, context) * slow * (1 + 0.03 * random.standard_normal()))


def test_a_line_is_found_from_the_probes() -> None:
    curve = fresh(probed(line))
    assert len(curve) == WIDEST
    assert curve == pytest.approx([line(width, 0) for width in range(1, WIDEST + 1)], rel=0.05)


@pytest.mark.parametrize(
    ("cost", "steps", "widths", "outliers", "expected"),
    [
        # Outliers move it little
        (line, 400, (1, 2, 4, 6), 0.05, {width: line(width, 0) for width in (1, 2, 4, 6)}),
        # Rows cost more behind a long context
        (rising, 2500, (1, 1, 2, 3, 4, 6, 8), 0.0, {1: rising(1, 2500), 8: rising(8, 2500)}),
        # On a machine that slows down, widths that are not used meanwhile keep their proportion
        (lambda *at: 2.0 * line(*at), 200, (1, 2, 3), 0.0, {1: 10.0, 16: 2 * line(16, 0)}),
        # What was is forgotten
        (lambda width, context: 5.0 + 2.5 * (width - 1), 600, (1, 2, 3, 4), 0.0, {4: 12.5}),
    ],
    ids=["outliers", "context", "slower", "forgotten"],
)
def test_costs_are_followed(
    cost: Cost, steps: int, widths: Sequence[int], outliers: float, expected: dict[int, float]
) -> None:
    curve = probed(rising if cost is rising else line)
    run(curve, cost, steps, widths, outliers)
    found = fresh(curve, steps)
    assert [found[width - 1] for width in expected] == pytest.approx(list(expected.values()), rel=0.1)


@given(
    noted=st.lists(
        st.tuples(st.integers(-1, 40), st.integers(0, 8000), st.floats(0.0, 1e4)), min_size=1, max_size=60
    )
)
def test_it_never_falls_and_is_never_free(noted: list[tuple[int, int, float]]) -> None:
    curve = LatencyCurve()
    for width, context, ms in noted:
        curve.note(width, context, ms)
        found = fresh(curve, context)
        assert all(np.isfinite(found))
        assert found[0] > 0
        assert list(found) == sorted(found)


def test_measuring_commits_nothing_and_probes_with_different_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one token would wake the same experts, and so look cheap."""
    target, curve, seen = tiny_target(), LatencyCurve(), list[list[int]]()
    target.read(random_tokens(20))
    before, forward = list(target.tokens), target.forward

    def watched(tokens: Sequence[int], *given: Any, **named: Any) -> Any:
        seen.append(list(tokens))
        return forward(tokens, *given, **named)

    monkeypatch.setattr(target, "forward", watched)
    measure(curve, target, seconds=0.0)
    assert target.tokens == before
    assert fresh(curve, 20)[0] > 0
    assert max(map(len, seen)) > 1
    assert all(len(set(tokens)) == len(tokens) for tokens in seen)


def test_who_asked_before_anything_was_measured_gets_milliseconds_afterwards() -> None:
    curve = LatencyCurve()
    assert curve.step_ms(0)[0] == 1.0  # in proportion only
    curve.note(1, 0, 40.0)
    assert curve.step_ms(0)[0] == pytest.approx(40.0, rel=0.05)
