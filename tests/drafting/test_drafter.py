"""The drafter: what it tells its sources, how many drafts it makes, and that it learns."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hierchat.drafting.acceptance import Acceptance
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.history import HistorySource
from hierchat.drafting.source import Candidate, DraftSource
from hierchat.drafting.suffix_index import BREAK
from hierchat.drafting.tree import DraftTree
from tests.drafting.test_tree import Steps

texts = st.lists(st.integers(0, 2), max_size=30)
COSTS = Steps([5.0 + 0.8 * rows for rows in range(32)])


class Fixed:
    """A source that always proposes the same, and writes down what it is told."""

    def __init__(self, name: str, *tokens: int, match: int = 32) -> None:
        self.name = name
        self.tokens = tokens
        self.match = match
        self.told: list[tuple[int, ...]] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.told = [tuple(prompt)]

    def observe(self, tokens: Sequence[int]) -> None:
        self.told.append(tuple(tokens))

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        self.asked = (tuple(context), budget)
        return [Candidate(self.tokens[:budget], self.name, self.match)]


@given(prompt=texts, replies=st.lists(texts, max_size=3), width=st.integers(1, 10), limit=st.integers(0, 9))
def test_width_and_limit_are_kept(
    prompt: list[int], replies: list[list[int]], width: int, limit: int
) -> None:
    drafter = Drafter([ContextSource(), HistorySource(replies)], width=width)
    drafter.begin(prompt)
    tree = drafter.propose(limit)
    assert len(tree) <= min(width - 1, limit)
    assert len(drafter.propose()) <= width - 1
    assert BREAK not in tree.tokens


def test_a_fixed_width_is_filled_whatever_it_costs() -> None:
    drafter = Drafter([Fixed("fixed", *range(40), match=1)], latency=Steps([5.0, 500.0]), width=8)
    drafter.begin([5])
    for _ in range(50):
        assert len(drafter.propose()) == 7
        drafter.observe([99])


def test_without_room_nobody_is_asked() -> None:
    source = Fixed("fixed", 1, 2, 3)
    drafter = Drafter([source])
    drafter.begin([5])
    assert drafter.propose(0) == drafter.propose(-1) == DraftTree()
    assert not hasattr(source, "asked")


def test_all_sources_are_told_and_the_first_is_preferred() -> None:
    high, low = Fixed("high", 1, 2), Fixed("low", 1, 3)
    sources: list[DraftSource] = [high, low]
    drafter = Drafter(sources, width=6)
    drafter.begin([5, 6])
    drafter.observe([7])
    drafter.observe([8, 9])
    tree = drafter.propose(4)
    assert high.told == low.told == [(5, 6), (7,), (8, 9)]
    assert high.asked == low.asked == ((5, 6, 7, 8, 9), 4)
    assert (tree.tokens[0], tree.sources[0]) == (1, "high")
    assert set(zip(tree.tokens[1:], tree.sources[1:], strict=True)) == {(2, "high"), (3, "low")}


def test_a_source_that_lies_is_soon_not_drafted_from_and_can_win_back_its_place() -> None:
    drafter = Drafter([Fixed("context", 1, 2, 3)], latency=COSTS)
    drafter.begin([5])
    assert drafter.propose()
    for _ in range(20):
        drafter.propose()
        drafter.observe([9])
    assert not drafter.propose()
    for _ in range(40):
        drafter.propose()
        drafter.observe([1])
    assert drafter.propose()


def test_a_source_that_is_right_is_drafted_from_further() -> None:
    drafter = Drafter([Fixed("context", *range(31), match=3)], latency=COSTS)
    drafter.begin([5])
    before = len(drafter.propose())
    for _ in range(30):
        drafted = len(drafter.propose())
        drafter.observe(list(range(drafted + 1)))
    assert 1 <= before < len(drafter.propose())
    assert len(drafter.propose()) > 16


def test_what_was_learned_outlives_the_reply() -> None:
    acceptance = Acceptance()
    first = Drafter([Fixed("context", 1, 2, 3)], acceptance, COSTS)
    first.begin([5])
    for _ in range(20):
        first.propose()
        first.observe([9])
    second = Drafter([Fixed("context", 1, 2, 3)], acceptance, COSTS)
    second.begin([5])
    assert not second.propose()


def test_observing_without_proposing_teaches_nothing() -> None:
    drafter = Drafter([Fixed("context", 1, 2, 3)], latency=COSTS)
    drafter.begin([5])
    tree = drafter.propose()
    for _ in range(3):
        drafter.observe([])
        drafter.observe([1])
    assert drafter.propose().probabilities[0] >= tree.probabilities[0]
