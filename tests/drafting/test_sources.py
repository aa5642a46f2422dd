"""The sources."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

import hierchat.drafting
from hierchat.drafting.context import ContextSource
from hierchat.drafting.history import HistorySource
from hierchat.drafting.source import Candidate
from hierchat.drafting.suffix_index import BREAK

texts = st.lists(st.integers(0, 2), max_size=30)


def occurs(text: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(text[at : at + len(part)]) == tuple(part) for at in range(len(text)))


def test_context_proposes_what_the_prompt_said() -> None:
    source = ContextSource()
    source.begin([1, 2, 3, 4, 5, 1, 2, 3])
    assert source.propose([1, 2, 3, 4, 5, 1, 2, 3], 4) == [Candidate([4, 5, 1, 2], "context", 3)]


def test_context_learns_from_the_reply_and_forgets_with_the_next() -> None:
    source = ContextSource()
    source.begin([1, 2])
    source.observe([3, 4])
    source.observe([1, 2])
    assert [found.tokens for found in source.propose([1, 2, 3, 4, 1, 2], 2)] == [[3, 4]]
    source.begin([1, 2])
    assert source.propose([1, 2], 2) == []


def test_history_proposes_earlier_replies_newest_first() -> None:
    source = HistorySource([[1, 2, 3, 4]])
    source.add([1, 2, 5])
    assert len(source) == 9
    assert [found.tokens for found in source.propose([0, 1, 2], 4)] == [[5], [3, 4]]


def test_history_leaves_this_reply_to_the_context() -> None:
    source = HistorySource()
    source.begin([1, 2, 3, 1, 2])
    source.observe([3, 1, 2])
    assert source.propose([1, 2, 3, 1, 2, 3, 1, 2], 4) == []


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
