"""Runs over questions: which are asked, in what order, those that are made here, and the file of a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hierchat.checks import runs
from hierchat.checks.runs import (
    COPIES,
    COPY_TOKENS,
    LONG,
    MT_BENCH,
    SPARE,
    Question,
    RequestError,
    questions_of,
    read_questions,
    spread,
)

ROWS = [{"question": 0, "reply": [1, 2, 3]}, {"question": 1, "reply": [4]}]


def test_a_file_with_categories_and_one_with_days(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["one\u2028still one", "two"]},
        {"id": 7, "day": 3, "kind": "code", "turns": ["three"]},
        {"turns": []},
        {"turns": ["four"]},
    ]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    first, second, third = read_questions(path)
    assert first == Question(0, "81", ("one\u2028still one", "two"), "writing")
    assert first.group == "mt_bench"
    assert (second.name, second.group, second.day) == ("7", "code", 3)
    assert (third.number, third.name, third.group) == (3, "3", "all")


def test_few_questions_cover_all_groups() -> None:
    categories = [*sorted(MT_BENCH) * 2, *["qa"] * 16, *["rag"] * 3]
    every = [Question(n, str(n), ("?",), category) for n, category in enumerate(categories)]
    some = spread(every, 12)
    assert Counter(question.group for question in some) == {"mt_bench": 5, "qa": 4, "rag": 3}
    assert len({question.category for question in some if question.group == "mt_bench"}) == 5
    assert sorted(spread(every), key=lambda question: question.number) == every
    assert spread(every)[:12] == some


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


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = {"machine": {"cores": 2}, "settings": {"seed": 1, "arms": ["vanilla"]}, "questions": ROWS}
    runs.write(path, result, rows="questions")
    assert json.loads(path.read_text()) == result
    assert runs.read(path, {"seed": 1, "arms": ["vanilla"]}) == result
    assert len(path.read_text().splitlines()) < 20
    assert [found.name for found in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(RequestError, match="seed was 1 and is 2"):
        runs.read(path, {"seed": 2})
    for text, reason in (("[]", "no run"), ("half of", "is no JSON")):
        path.write_text(text)
        with pytest.raises(RequestError, match=reason):
            runs.read(path, {})
    assert runs.read(tmp_path / "none.json", {}) is None


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    runs.require_writable(tmp_path / "out.json")
    assert not list(tmp_path.iterdir())
    for place in (tmp_path, tmp_path / "nowhere" / "out.json"):
        with pytest.raises(RequestError):
            runs.require_writable(place)
