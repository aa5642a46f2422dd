"""Questions made out of Python's own library."""

from __future__ import annotations

import pytest

from hierchat.checks.questions import COPIES, COPY_TOKENS, LONG, SPARE, length_by, questions_of
from tests.testing.tiny_chat import tokenizer


def words(text: str) -> int:
    return len(text.split())


def test_copies_name_what_is_to_be_changed() -> None:
    questions = questions_of("copy", words, 8_000)
    assert [question.category for question in questions] == ["copy"] * len(COPIES)
    for question, (_, old, new) in zip(questions, COPIES, strict=True):
        (text,) = question.turns
        assert f"rename `{old}` to `{new}`" in text
        assert old in text.split("```")[1]
        assert words(text) <= COPY_TOKENS + SPARE


@pytest.mark.parametrize("most", [1_000, 3_000])
def test_long_texts_fill_the_context_and_no_more(most: int) -> None:
    questions = questions_of("long-context", words, most)
    assert len(questions) == len(LONG)
    for question in questions:
        assert most - 2 * SPARE <= words(question.turns[0]) <= most


def test_sizes_are_categories() -> None:
    questions = questions_of("long-context", words, 8_000, (700, 2_000))
    assert [question.number for question in questions] == list(range(2 * len(LONG)))
    for size in (700, 2_000):
        texts = [question.turns[0] for question in questions if question.category == f"long-context-{size}"]
        assert len(texts) == len(LONG)
        assert all(size - 2 * SPARE <= words(text) <= size for text in texts)


def test_a_tokenizer_counts() -> None:
    assert length_by(tokenizer())("a b") == len(tokenizer()("a b", add_special_tokens=False)["input_ids"]) > 0
