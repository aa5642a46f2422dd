"""Runs over questions: which are asked, and in what order."""

import json
from collections import Counter
from pathlib import Path

from hierchat.checks.runs import (
    MT_BENCH,
    Question,
    read_questions,
    spread,
)


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
