"""Lessons of several models: each has the texts that it would draft from, and no reply is history to another model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.makers import lessons
from benchmarks.record import append
from hierchat.drafting.growing.kernel_arrays import CANDIDATES, HISTORY, INPUTS, SEED
from hierchat.drafting.source import Source

SHIPPED = {"one": [1, 2, 3], "other": [1, 2, 4]}


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> lessons.Shelf:
    catalogue = SimpleNamespace(entry=lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(lessons, "read_catalogue", lambda: catalogue)
    monkeypatch.setattr(lessons, "load_tokenizer", lambda entry: None)
    monkeypatch.setattr(lessons, "statistics", lambda entry, *_, **__: [entry.name])
    monkeypatch.setattr(
        lessons, "statistics_sources", lambda names: [Source.of([SHIPPED[names[0]]], SEED)] if names else []
    )
    return lessons.Shelf(None)


def recorded(path: Path, model: str, *replies: list[int]) -> Path:
    for reply in replies:
        line: dict[str, Any] = {"question_id": str(reply), "prompt": [9, 1, 2], "reply": reply}
        append(path, line | {"settings": {"model": model}})
    return path


def named_by(taught: lessons.Lessons, row: int, slot: int) -> bool:
    """Whether the token that followed is named by a slot."""
    right = int(taught.right[row])
    return right < CANDIDATES and bool(taught.inputs[row, right, slot * INPUTS : (slot + 1) * INPUTS].any())


def test_each_model_has_the_texts_that_ship_as_it_has_them(shelf: lessons.Shelf, tmp_path: Path) -> None:
    files = [recorded(tmp_path / "a", "one", [3]), recorded(tmp_path / "b", "other", [3], [4])]
    taught = shelf.lessons(files)
    assert len(taught.right) == 3
    assert [named_by(taught, row, SEED) for row in range(3)] == [True, False, True]


def test_history_begins_anew_with_each_file(shelf: lessons.Shelf, tmp_path: Path) -> None:
    again = [7, 1, 2, 5]
    taught = shelf.lessons(
        [recorded(tmp_path / "a", "one", again, again), recorded(tmp_path / "b", "other", again)]
    )
    assert [named_by(taught, row, HISTORY) for row in (3, 7, 11)] == [False, True, False]
    assert np.array_equal(taught.right[:4] == CANDIDATES, taught.right[8:] == CANDIDATES)
