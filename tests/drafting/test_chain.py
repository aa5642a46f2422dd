"""The path of a tree that pays best, against all paths there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.draft_tree import DraftCost, DraftTree, Match, best_chain


class Linear:
    """Rows of equal cost beside a step of 10 ms."""

    def __init__(self, row_ms: float) -> None:
        self._table = [10.0 + row_ms * rows for rows in range(24)]

    def step_ms(self, context: int) -> list[float]:
        return self._table


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


def path_to(tree: DraftTree, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


@given(trees(), st.floats(0.0, 12.0), st.integers(0, 6))
def test_no_path_pays_better(tree: DraftTree, row_ms: float, most: int) -> None:
    cost = DraftCost(Linear(row_ms))

    def profit(path: list[int]) -> float:
        return sum(tree.probabilities[node] for node in path) * cost.token_ms - float(cost.extra[len(path)])

    chain = best_chain(tree, cost, most)
    paths = [path for node in range(len(tree)) if len(path := path_to(tree, node)) <= most]
    mine = list(chain.tokens)  # a node's token is its number here
    assert not mine or mine in paths
    assert profit(mine) >= max([0.0, *map(profit, paths)]) - 1e-9
    assert chain.parents == tuple(range(-1, len(chain) - 1))
    assert chain.probabilities == tuple(tree.probabilities[node] for node in mine)
    assert [match.position for match in chain.matches] == mine


def test_a_chain_may_leave_the_likeliest_first_token() -> None:
    """The first token of the left path is likelier, the right path goes on."""
    tree = DraftTree((0, 1, 2, 3), (-1, -1, 1, 2), ("x",) * 4, (0.5, 0.4, 0.38, 0.36))
    assert best_chain(tree, DraftCost(Linear(0.1)), 8).tokens == (1, 2, 3)
    assert best_chain(tree, DraftCost(Linear(0.1)), 1).tokens == (0,)
    assert best_chain(tree, DraftCost(Linear(20.0)), 8).tokens == ()
