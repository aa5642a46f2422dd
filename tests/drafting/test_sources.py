"""Sources and the drafter that asks them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

import hierchat.drafting
from hierchat.drafting.context import ContextSource
from hierchat.drafting.drafter import Drafter
from hierchat.drafting.history import HistorySource
from hierchat.drafting.matches import KEPT
from hierchat.drafting.source import Candidate, DraftSource
from hierchat.drafting.suffix_index import BREAK
from hierchat.drafting.tree import DraftTree

texts = st.lists(st.integers(0, 2), max_size=30)


class Fixed:
    """A source that always proposes the same, and writes down what it is told."""

    def __init__(self, name: str, *tokens: int) -> None:
        self.name = name
        self.tokens = tokens
        self.told: list[tuple[int, ...]] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.told = [tuple(prompt)]

    def observe(self, tokens: Sequence[int]) -> None:
        self.told.append(tuple(tokens))

    def propose(self, context: Sequence[int], budget: int) -> list[Candidate]:
        self.asked = (tuple(context), budget)
        return [Candidate(self.tokens[:budget], self.name, 32, weight=16.0)]


def occurs(text: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(text[at : at + len(part)]) == tuple(part) for at in range(len(text)))


def test_context_proposes_what_the_prompt_said() -> None:
    source = ContextSource()
    source.begin([1, 2, 3, 4, 5, 1, 2, 3])
    assert source.propose([1, 2, 3, 4, 5, 1, 2, 3], 4) == [Candidate((4, 5, 1, 2), "context", 3, weight=2.0)]


def test_context_learns_from_the_reply_and_forgets_with_the_next() -> None:
    source = ContextSource()
    source.begin([1, 2])
    source.observe([3, 4])
    source.observe([1, 2])
    assert [found.tokens for found in source.propose([1, 2, 3, 4, 1, 2], 2)] == [(3, 4)]
    source.begin([1, 2])
    assert source.propose([1, 2], 2) == []


def test_history_proposes_earlier_replies_newest_first() -> None:
    source = HistorySource([[1, 2, 3, 4]])
    source.add([1, 2, 5])
    assert len(source) == 9
    assert [found.tokens for found in source.propose([0, 1, 2], 4)] == [(5,), (3, 4)]


def test_history_leaves_this_reply_to_the_context() -> None:
    source = HistorySource()
    source.begin([1, 2, 3, 1, 2])
    source.observe([3, 1, 2])
    assert source.propose([1, 2, 3, 1, 2, 3, 1, 2], 4) == []


def test_longest_matches_come_first_and_few_are_kept() -> None:
    source = HistorySource([[7, 8, 9, 1], *([8, 9, 2] for _ in range(KEPT + 5))])
    found = source.propose([7, 8, 9], 3)
    assert len(found) == KEPT
    assert (found[0].tokens, found[0].match_length) == ((1,), 3)
    assert found[0].weight > found[1].weight


@given(replies=st.lists(texts, max_size=5), context=texts, budget=st.integers(0, 8))
def test_nothing_crosses_from_one_reply_into_another(
    replies: list[list[int]], context: list[int], budget: int
) -> None:
    for found in HistorySource(replies).propose(context, budget):
        assert 0 < len(found.tokens) <= budget
        assert BREAK not in found.tokens
        seen = [*context[len(context) - found.match_length :], *found.tokens]
        assert any(occurs(reply, seen) for reply in replies)


@given(prompt=texts, reply=texts, budget=st.integers(0, 8))
def test_context_proposes_only_what_it_saw(prompt: list[int], reply: list[int], budget: int) -> None:
    source = ContextSource()
    source.begin(prompt)
    source.observe(reply)
    text = prompt + reply
    for found in source.propose(text, budget):
        assert 0 < len(found.tokens) <= budget
        assert occurs(text, [*text[len(text) - found.match_length :], *found.tokens])


@given(prompt=texts, replies=st.lists(texts, max_size=3), budget=st.integers(0, 9), limit=st.integers(0, 9))
def test_drafter_keeps_budget_and_limit(
    prompt: list[int], replies: list[list[int]], budget: int, limit: int
) -> None:
    drafter = Drafter([ContextSource(), HistorySource(replies)], budget)
    drafter.begin(prompt)
    tree = drafter.propose(limit)
    assert len(tree) <= min(budget, limit)
    assert len(drafter.propose()) <= budget
    assert BREAK not in tree.tokens


def test_drafter_without_room_asks_nobody() -> None:
    source = Fixed("fixed", 1, 2, 3)
    drafter = Drafter([source])
    drafter.begin([5])
    assert drafter.propose(0) == drafter.propose(-1) == DraftTree()
    assert not hasattr(source, "asked")


def test_drafter_tells_all_sources_and_prefers_the_first() -> None:
    high, low = Fixed("high", 1, 2), Fixed("low", 1, 3)
    sources: list[DraftSource] = [high, low]
    drafter = Drafter(sources, budget=5)
    drafter.begin([5, 6])
    drafter.observe([7])
    drafter.observe([8, 9])
    tree = drafter.propose(4)
    assert high.told == low.told == [(5, 6), (7,), (8, 9)]
    assert high.asked == low.asked == ((5, 6, 7, 8, 9), 4)
    assert (tree.tokens[0], tree.sources[0]) == (1, "high")
    assert set(zip(tree.tokens[1:], tree.sources[1:], strict=True)) == {(2, "high"), (3, "low")}


def test_drafting_imports_no_torch() -> None:
    names = [module.name for module in pkgutil.iter_modules(hierchat.drafting.__path__, "hierchat.drafting.")]
    assert "hierchat.drafting.tree" in names
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "gradio", "sqlite3", "sqlite_utils"} & set(loaded)
    ours = {name for name in loaded if name.startswith("hierchat.")}
    assert all(name.startswith("hierchat.drafting") for name in ours)
