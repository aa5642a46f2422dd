"""The file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hierchat.checks import runs
from hierchat.checks.questions import RequestError

ROWS = [{"question": 0, "reply": [1, 2, 3]}, {"question": 1, "reply": [4]}]


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


def test_a_file_to_go_on_from(tmp_path: Path) -> None:
    assert runs.read(tmp_path / "none.json", {}) is None
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(RequestError, match="no run"):
        runs.read(tmp_path / "list.json", {})
    (tmp_path / "text.json").write_text("half of")
    with pytest.raises(RequestError, match="is no JSON"):
        runs.read(tmp_path / "text.json", {})


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    runs.require_writable(tmp_path / "out.json")
    assert not list(tmp_path.iterdir())
    for place in (tmp_path, tmp_path / "nowhere" / "out.json"):
        with pytest.raises(RequestError):
            runs.require_writable(place)
