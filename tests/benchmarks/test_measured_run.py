"""Questions that are made here, their sizes, and the file of a run that another one continues."""

import json
from pathlib import Path

import pytest

from benchmarks import measured_run
from benchmarks.workloads import COPIES, COPY_TOKENS, LONG, SPARE, questions_of
from hierchat.checks import runs
from hierchat.checks.runs import RequestError

ROWS = [{"question": 0, "reply": [1, 2, 3]}, {"question": 1, "reply": [4]}]


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
    assert measured_run.read(path, {"seed": 1, "arms": ["vanilla"]}) == result
    assert len(path.read_text().splitlines()) < 20
    assert [found.name for found in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(RequestError, match="seed was 1 and is 2"):
        measured_run.read(path, {"seed": 2})
    for text, reason in (("[]", "no run"), ("half of", "is no JSON")):
        path.write_text(text)
        with pytest.raises(RequestError, match=reason):
            measured_run.read(path, {})
    assert measured_run.read(tmp_path / "none.json", {}) is None
