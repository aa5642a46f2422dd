"""What drafts cost, and what a token is worth."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_cost import WIDEST_BATCH, DraftCost, RowCosts
from hierchat.drafting.draft_tree import DraftTree, Match, best_chain, divided
from tests.drafting.databases import Steps, paths_of

steps = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=16).map(
    lambda rises: [5.0 + sum(rises[:rows]) for rows in range(len(rises) + 1)]
)


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


@given(
    noted=st.lists(st.integers(1, 8).flatmap(lambda width: st.tuples(st.just(width), st.integers(1, width))))
)
def test_a_token_is_never_worth_more_than_a_plain_step(noted: list[tuple[int, int]]) -> None:
    cost = DraftCost(Steps([5.0 + rows for rows in range(8)]))
    for width, tokens in noted:
        cost.note(width, tokens)
        assert 0.0 < cost.token_ms <= 5.0


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    parents: list[int] = []
    chances: list[float] = []
    for node in range(draw(st.integers(0, 12))):
        parents.append(draw(st.integers(-1, node - 1)))
        above = chances[parents[-1]] if parents[-1] >= 0 else 1.0
        chances.append(above * draw(st.floats(0.05, 1.0)))
    size = len(parents)
    matches = tuple(Match(0, node, -1, node) for node in range(size))
    return DraftTree(tuple(range(size)), tuple(parents), ("x",) * size, tuple(chances), matches=matches)


@given(trees(), st.floats(0.0, 12.0), st.integers(0, 6))
def test_no_path_pays_better(tree: DraftTree, row_ms: float, most: int) -> None:
    cost = DraftCost(Steps([10.0 + row_ms * rows for rows in range(24)]))

    def profit(path: Sequence[int]) -> float:
        return sum(tree.probabilities[node] for node in path) * cost.token_ms - float(cost.extra[len(path)])

    chain = best_chain(tree, cost, most)
    mine = chain.tokens
    paths = [path for path in paths_of(tree) if len(path) <= most]  # a node's token is its number here
    assert not mine or mine in paths
    assert profit(mine) >= max([0.0, *map(profit, paths)]) - 1e-9
    assert chain.parents == tuple(range(-1, len(chain) - 1))
    assert chain.probabilities == tuple(tree.probabilities[node] for node in mine)
    assert tuple(match.position for match in chain.matches) == mine


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
    roots = len(chances)
    cost = DraftCost(Steps([1.0 + row * rows for rows in range(32)]))
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


# What forwards cost by their rows, from steps alone.


@given(st.lists(st.tuples(st.integers(-3, 700), st.floats(0.0, 1e6)), max_size=40), st.integers(1, 700))
def test_costs_never_fall_whatever_was_seen(seen: list[tuple[int, float]], widest: int) -> None:
    costs = RowCosts(widest)
    for rows, ms in seen:
        costs.note(rows, ms)
    table = costs.step_ms(0)
    assert len(table) == min(max(widest, 2), WIDEST_BATCH)
    assert np.all(np.diff(table) >= 0)
    assert table[0] > 0
    assert np.isfinite(table).all()


@pytest.mark.parametrize(
    "truth",
    [
        lambda rows: 30.0 + 0.5 * rows,  # a processor
        lambda rows: 20.0 + 0.02 * max(rows - 64, 0),  # a GPU: free at first
    ],
)
def test_they_become_what_steps_take(truth) -> None:  # type: ignore[no-untyped-def]
    noise = random.Random(1)
    costs = RowCosts()
    widths = [1, 2, 5, 9, 16, 40, 70, 130, 260]
    for _ in range(60):
        for rows in widths:
            costs.note(rows, truth(rows) * noise.uniform(0.97, 1.03))
    found = costs.step_ms(0)
    for rows in [*widths, 100, 200]:
        assert found[rows - 1] == pytest.approx(truth(rows), rel=0.08)


def test_a_disturbed_step_changes_little_and_not_for_long() -> None:
    costs = RowCosts(64)

    def note(times: int, ms: float = 30.0) -> float:
        for number in range(times):
            costs.note(1 + number % 9, ms)
        return max(costs.step_ms(0)[:9])

    note(200)
    costs.note(5, 3000.0)
    assert note(16) < 36.0
    assert note(45) < 31.0
