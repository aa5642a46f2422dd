"""Several proposers as one: merged trees, who is asked, what each is told."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierchat.drafting.draft_tree import NO_MATCH, DraftCost, DraftTree, FreeRows, Match
from hierchat.drafting.proposer import AGAIN, TRIALS, JointDrafter, merge, path_of

FREE = np.zeros(64)


class Costly:
    """A forward that takes 10 ms, and 1 ms more for each further row."""

    def step_ms(self, context: int) -> Sequence[float]:
        return STEPS


STEPS = [10.0 + row for row in range(32)]


class Told:
    """A proposer that says what it is given, and notes what it is told."""

    def __init__(self, tree: DraftTree, top: int = 0, seconds: float = 0.0) -> None:
        self.tree, self.top, self.seconds = tree, top, seconds
        self.begun: list[int] = []
        self.asked = 0
        self.told: list[tuple[list[int], tuple[int, ...] | None]] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.begun = list(prompt)

    def propose(self, limit: int | None = None) -> DraftTree:
        self.asked += 1
        time.sleep(self.seconds)
        return self.tree

    def observe(self, tokens: Sequence[int], top: NDArray[np.int32] | None = None) -> None:
        self.told.append((list(tokens), None if top is None else top.shape))


class Head(Told):
    """One that reads hidden states."""

    reads_hidden = True

    def see(self, hidden: NDArray[np.float32]) -> None:
        self.seen = hidden


def chain(*tokens: int, source: str = "a", chance: float = 0.9) -> DraftTree:
    size = len(tokens)
    return DraftTree(
        tokens, tuple(range(-1, size - 1)), (source,) * size, tuple(chance ** (i + 1) for i in range(size))
    )


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    chances: list[float] = []
    for parent in parents:
        above = 1.0 if parent < 0 else chances[parent]
        chances.append(above * draw(st.floats(0.05, 1.0)))
    tokens = tuple(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    return DraftTree(tokens, tuple(parents), (draw(st.sampled_from("ab")),) * size, tuple(chances))


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """The highest chance of each path."""
    found: dict[tuple[int, ...], float] = {}
    whole: list[tuple[int, ...]] = []
    for parent, token, chance in zip(tree.parents, tree.tokens, tree.probabilities, strict=True):
        whole.append((*whole[parent], token) if parent >= 0 else (token,))
        found[whole[-1]] = max(chance, found.get(whole[-1], 0.0))
    return found


@given(st.lists(trees(), max_size=3))
def test_everything_is_in_the_merged_tree_once(given_trees: list[DraftTree]) -> None:
    tree = merge(given_trees, FREE, 1.0, 64)
    expected: dict[tuple[int, ...], float] = {}
    for one in given_trees:
        for path, chance in paths(one).items():
            expected[path] = max(chance, expected.get(path, 0.0))
    assert paths(tree) == expected
    assert len(tree) == len(expected)
    assert all(parent < node for node, parent in enumerate(tree.parents))


@given(st.lists(trees(), max_size=3), st.integers(0, 10), st.floats(0.0, 2.0))
def test_what_is_kept_are_the_likeliest_that_pay(
    given_trees: list[DraftTree], most: int, row_ms: float
) -> None:
    whole = merge(given_trees, FREE, 1.0, 64)
    tree = merge(given_trees, np.full(64, row_ms), 1.0, most)
    assert len(tree) == min(most, sum(chance > row_ms for chance in whole.probabilities))
    assert tree.probabilities == tuple(sorted(whole.probabilities, reverse=True))[: len(tree)]
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))


def test_the_path_that_tokens_begin_with() -> None:
    tree = merge([chain(1, 2, 3), chain(1, 4, 5)], FREE, 1.0, 9)
    assert [len(path_of(tree, tokens)) for tokens in ([1, 4, 5, 6], [1, 2], [1, 9], [7], [])] == [
        3,
        2,
        1,
        0,
        0,
    ]


def test_each_is_told_what_it_asked_for() -> None:
    first, plain, wants = Told(chain(1)), Told(chain(2)), Head(chain(3), top=2)
    joint = JointDrafter(first, [plain, wants], DraftCost(FreeRows(8)))
    assert (joint.top, joint.reads_hidden) == (2, True)
    assert not JointDrafter(first, [plain], DraftCost(FreeRows(8))).reads_hidden
    joint.begin([5, 6])
    assert (first.begun, plain.begun, wants.begun) == ([5, 6],) * 3
    assert sorted(joint.propose().tokens) == [1, 2, 3]
    joint.see(np.ones((2, 4), np.float32))
    joint.observe([3, 7], np.zeros((2, 2), np.int32))
    assert first.told == plain.told == [([3, 7], None)]
    assert wants.told == [([3, 7], (2, 2))]
    assert wants.seen.shape == (2, 4)


def test_one_that_brings_nothing_is_asked_now_and_then_and_one_that_pays_always() -> None:
    right, wrong = Told(chain(1, 2, 3)), Told(chain(9, 9), seconds=0.001)
    joint = JointDrafter(Told(chain(7)), [right, wrong], DraftCost(Costly()))
    joint.begin([5, 6, 7])
    steps = 4 * AGAIN
    for _ in range(steps):
        tree = joint.propose()
        assert {1, 2, 3} <= set(tree.tokens)
        assert tree.models_ms > 0
        joint.observe([1, 2, 3, 8])
    assert right.asked == steps
    assert TRIALS <= wrong.asked <= TRIALS + 4
    assert 9 not in joint.propose().tokens  # its chances were found out


def test_a_merged_node_tells_what_its_likelier_draft_was_found_by() -> None:
    found = [Match(0, length, -1, length) for length in (1, 2)]
    databases = DraftTree((1, 2), (-1, 0), ("history",) * 2, (0.9, 0.3), matches=tuple(found))
    model = DraftTree((1, 2, 3), (-1, 0, 1), ("model",) * 3, (0.8, 0.7, 0.6))
    merged = merge([databases, model], FREE, 1.0, 10)
    assert merged.matches == (found[0], NO_MATCH, NO_MATCH)
    assert [merged.chance(node) for node in range(3)] == [0.9, 0.7 / 0.9, 0.6 / 0.7]
    assert DraftTree((1,), (-1,), ("model",)).chance(0) is None
