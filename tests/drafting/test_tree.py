"""The draft tree: what it may hold, in what order, whose each node is, and how large it grows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.acceptance import MOST, Acceptance
from hierchat.drafting.price import Free, Price
from hierchat.drafting.source import Candidate
from hierchat.drafting.tree import DraftTree, grow

Path = tuple[int, ...]

proposals = st.lists(
    st.builds(
        Candidate,
        st.lists(st.integers(0, 3), max_size=6),
        st.sampled_from(["context", "history", "statistics"]),
        st.integers(1, 40),
    ),
    max_size=12,
).map(
    lambda found: sorted(found, key=lambda candidate: candidate.source)
)  # the names stand in order of locality
budgets = st.integers(0, 12)
steps = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=16).map(
    lambda rises: [5.0 + sum(rises[:rows]) for rows in range(len(rises) + 1)]
)


class Steps:
    """Milliseconds of a step over 1, 2, ... positions, as a list."""

    def __init__(self, step_ms: Sequence[float]) -> None:
        self._step_ms = step_ms

    def step_ms(self, context: int) -> Sequence[float]:
        return self._step_ms


def tree_of(candidates: Sequence[Candidate], budget: int = 31, step_ms: Sequence[float] = ()) -> DraftTree:
    """Rows are free unless costs are given."""
    price = Price(Steps(step_ms) if step_ms else Free(32))
    return grow(candidates, Acceptance(), price, min(budget, price.most)).tree


def paths(tree: DraftTree) -> list[Path]:
    """Tokens from the root to each node."""
    found: list[Path] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(candidates=proposals, budget=budgets, costs=st.one_of(st.just([]), steps))
def test_shape(candidates: list[Candidate], budget: int, costs: list[float]) -> None:
    tree = tree_of(candidates, budget, costs)
    assert len(tree) == len(tree.parents) == len(tree.sources) == len(tree.probabilities) <= budget
    assert not costs or len(tree) < len(costs)
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)
    proposed = {tuple(c.tokens[:depth]) for c in candidates for depth in range(1, len(c.tokens) + 1)}
    assert set(paths(tree)) <= proposed


@given(candidates=proposals, budget=budgets)
def test_probabilities(candidates: list[Candidate], budget: int) -> None:
    tree = tree_of(candidates, budget)
    assert list(tree.probabilities) == sorted(tree.probabilities, reverse=True)  # best first
    for above in {-1, *tree.parents}:
        siblings = [
            chance for parent, chance in zip(tree.parents, tree.probabilities, strict=True) if parent == above
        ]
        path = tree.probabilities[above] if above >= 0 else 1.0
        assert all(0.0 < chance <= path for chance in siblings)
        assert sum(siblings) <= path * (MOST + 1e-9)


@given(candidates=proposals, costs=steps)
def test_the_size_is_the_best_one(candidates: list[Candidate], costs: list[float]) -> None:
    tree, all_of_it = tree_of(candidates, step_ms=costs), tree_of(candidates, len(costs) - 1)
    gains = [0.0]
    for drafts, chance in enumerate(all_of_it.probabilities, 1):
        gains.append(
            sum(all_of_it.probabilities[: drafts - 1]) + chance - (costs[drafts] - costs[0]) / costs[0]
        )
    assert gains[len(tree)] == pytest.approx(max(gains))
    assert tree.tokens == all_of_it.tokens[: len(tree)]
    assert tree.parents == all_of_it.parents[: len(tree)]


@given(candidates=proposals)
def test_nothing_pays_where_a_row_costs_a_step(candidates: list[Candidate]) -> None:
    assert tree_of(candidates, step_ms=[5.0 * width for width in range(1, 33)]) == DraftTree()


@given(length=st.integers(1, 40), match=st.integers(1, 32))
def test_free_rows_carry_the_whole_chain(length: int, match: int) -> None:
    chain = Candidate(list(range(length)), "context", match)
    tree = tree_of([chain])
    assert tree.tokens == tuple(range(min(length, 31)))
    assert tree.parents == tuple(range(-1, len(tree) - 1))


def test_a_long_match_is_drafted_further_than_a_short_one() -> None:
    costs = [5.0 + 0.8 * rows for rows in range(32)]
    sizes = [
        len(tree_of([Candidate(list(range(31)), "context", match)], step_ms=costs)) for match in (1, 4, 32)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < 4 < 16 < sizes[2]


def test_rows_that_come_in_groups_are_filled() -> None:
    """The first row of a group of eight costs more than its own draft brings, all eight together pay."""
    chain = [Candidate(list(range(31)), "context", 32)] * 2
    grouped = [5.0 + 6.0 * (rows // 8) for rows in range(32)]
    assert len(tree_of(chain, step_ms=grouped)) in (7, 15, 23, 31)
    assert len(tree_of(chain, step_ms=[5.0, *(ms + 6.0 for ms in grouped[1:])])) in (7, 15, 23, 31)


@given(candidates=proposals, budget=budgets)
def test_a_smaller_budget_keeps_the_beginning(candidates: list[Candidate], budget: int) -> None:
    small, large = tree_of(candidates, budget), tree_of(candidates, budget + 1)
    assert small.tokens == large.tokens[:budget]
    assert small.parents == large.parents[:budget]
    assert small.sources == large.sources[:budget]


@given(candidates=proposals, budget=budgets)
def test_a_token_belongs_to_the_highest_source_that_proposed_it(
    candidates: list[Candidate], budget: int
) -> None:
    tree = tree_of(candidates, budget)
    for path, source in zip(paths(tree), tree.sources, strict=True):
        assert source == min(c.source for c in candidates if tuple(c.tokens[: len(path)]) == path)


def test_two_sources_share_a_beginning() -> None:
    tree = tree_of([Candidate([1, 2, 3], "context", 8), Candidate([1, 2, 4], "history", 8)])
    assert dict(zip(paths(tree), tree.sources, strict=True)) == {
        (1,): "context",
        (1, 2): "context",
        (1, 2, 3): "context",
        (1, 2, 4): "history",
    }


def test_nothing_proposed() -> None:
    assert tree_of([]) == DraftTree()
    assert tree_of([Candidate([], "context", 8)]) == DraftTree()
    assert tree_of([Candidate([1], "context", 8)], budget=0) == DraftTree()
