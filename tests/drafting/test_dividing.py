"""The rows of a forward that replies share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_tree import DraftCost, DraftTree, divided


@given(
    chances=st.lists(
        st.lists(st.floats(0.01, 1.0), max_size=5).map(lambda found: sorted(found, reverse=True)),
        min_size=1,
        max_size=3,
    ),
    row=st.floats(0.01, 0.8),
)
def test_rows_go_where_they_bring_most(chances: list[list[float]], row: float) -> None:
    """Against every way to divide them; rows of equal cost."""

    class Linear:
        def step_ms(self, context: int) -> list[float]:
            return [1.0 + row * rows for rows in range(32)]

    roots = len(chances)
    cost = DraftCost(Linear())
    cost.look(10, roots)
    trees = [
        DraftTree(tuple(range(len(one))), tuple(range(-1, len(one) - 1)), ("x",) * len(one), tuple(one))
        for one in chances
    ]
    worth = cost.token_ms

    def profit(kept: list[int]) -> float:
        brought = sum(sum(one[:count]) for one, count in zip(chances, kept, strict=True))
        return brought - float(cost.extra[sum(kept)]) / worth

    kept = divided(trees, cost)
    every = np.ndindex(*[len(one) + 1 for one in chances])
    assert profit(kept) >= max(profit(list(one)) for one in every) - 1e-9
    assert cost.token_ms <= (1.0 + row * (roots - 1)) / roots + 1e-9
