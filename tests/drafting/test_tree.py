"""The draft tree: what it may hold, in what order, and whose each node is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.source import Candidate
from hierchat.drafting.tree import MIN_PATH_PROBABILITY, DraftTree, grow

Path = tuple[int, ...]

proposals = st.lists(
    st.builds(
        Candidate,
        st.lists(st.integers(0, 3), max_size=6).map(tuple),
        st.sampled_from(["context", "history", "statistics"]),
        st.integers(0, 8),
        st.sampled_from([1.0, 2.0, 4.0, 16.0]),
    ),
    max_size=12,
).map(
    lambda found: sorted(found, key=lambda candidate: candidate.source)
)  # the names stand in order of locality
budgets = st.integers(0, 12)


def paths(tree: DraftTree) -> list[Path]:
    """Tokens from the root to each node."""
    found: list[Path] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def weight(candidates: Sequence[Candidate], path: Path) -> float:
    return sum(candidate.weight for candidate in candidates if candidate.tokens[: len(path)] == path)


def probability(candidates: Sequence[Candidate], path: Path) -> float:
    """Share of the weight at every branching, half a vote kept for none of them, times the longest match's trust."""
    chance = 1.0
    for depth in range(1, len(path) + 1):
        above = path[: depth - 1]
        through = [c for c in candidates if c.tokens[: depth - 1] == above and len(c.tokens) >= depth]
        trust = max(1 - 0.5**c.match_length for c in through if c.tokens[:depth] == path[:depth])
        chance *= weight(through, path[:depth]) / (sum(c.weight for c in through) + 0.5) * trust
    return chance


@given(candidates=proposals, budget=budgets)
def test_shape(candidates: list[Candidate], budget: int) -> None:
    tree = grow(candidates, budget)
    assert len(tree) == len(tree.parents) == len(tree.sources) == len(tree.probabilities) <= budget
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree)


@given(candidates=proposals, budget=budgets)
def test_probabilities(candidates: list[Candidate], budget: int) -> None:
    tree = grow(candidates, budget)
    assert all(MIN_PATH_PROBABILITY <= chance < 1 for chance in tree.probabilities)
    assert list(tree.probabilities) == sorted(tree.probabilities, reverse=True)  # best first
    for parent, chance in zip(tree.parents, tree.probabilities, strict=True):
        assert parent < 0 or chance <= tree.probabilities[parent]
    for path, chance in zip(paths(tree), tree.probabilities, strict=True):
        assert math.isclose(chance, probability(candidates, path))


@given(candidates=proposals)
def test_all_that_is_likely_enough_is_there(candidates: list[Candidate]) -> None:
    held = set(paths(grow(candidates, 1000)))
    proposed = {c.tokens[:depth] for c in candidates for depth in range(1, len(c.tokens) + 1)}
    for path in proposed:
        chance = probability(candidates, path)
        if not math.isclose(chance, MIN_PATH_PROBABILITY):
            assert (path in held) == (chance > MIN_PATH_PROBABILITY)
    assert held <= proposed


@given(candidates=proposals, budget=budgets)
def test_a_smaller_budget_keeps_the_beginning(candidates: list[Candidate], budget: int) -> None:
    small, large = grow(candidates, budget), grow(candidates, budget + 1)
    assert small.tokens == large.tokens[:budget]
    assert small.parents == large.parents[:budget]
    assert small.sources == large.sources[:budget]


@given(candidates=proposals, budget=budgets)
def test_a_token_belongs_to_the_highest_source_that_proposed_it(
    candidates: list[Candidate], budget: int
) -> None:
    tree = grow(candidates, budget)
    for path, source in zip(paths(tree), tree.sources, strict=True):
        assert source == min(c.source for c in candidates if c.tokens[: len(path)] == path)


def test_two_sources_share_a_beginning() -> None:
    tree = grow([Candidate((1, 2, 3), "context", 8), Candidate((1, 2, 4), "history", 8)], 8)
    assert dict(zip(paths(tree), tree.sources, strict=True)) == {
        (1,): "context",
        (1, 2): "context",
        (1, 2, 3): "context",
        (1, 2, 4): "history",
    }


def test_nothing_proposed() -> None:
    assert grow([], 7) == DraftTree()
    assert grow([Candidate((), "context", 8)], 7) == DraftTree()
    assert grow([Candidate((1,), "context", 0)], 7) == DraftTree()  # no match, no trust
