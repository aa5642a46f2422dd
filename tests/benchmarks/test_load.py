"""benchmarks load and index: several users at one engine, and what a history costs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import index
from benchmarks.__main__ import main
from benchmarks.arms import OwnArm
from benchmarks.load import measure
from hierchat.engine.local import LocalEngine
from hierchat.runtime.served_model import ServedModel
from tests.testing.questions import SETTINGS, questions, tell
from tests.testing.tiny_chat import END, served, tokenizer


def many(places: int) -> ServedModel:
    """The tiny model, with room for so many replies at once."""
    one = served()
    engine = LocalEngine(one.local.runner.open(), {END}, tokenizer().decode, places)
    return ServedModel(one.name, one.model_key, engine, one.prompts, one.vanilla_ms)


@pytest.mark.parametrize("users", [1, 3])
def test_all_users_get_what_one_gets(users: int) -> None:
    model = many(users)
    arms = [OwnArm("vanilla", model), OwnArm("hierchat", model)]
    figures = measure(model, arms, questions(6), SETTINGS, [1, users], tell, repeats=2)
    assert {(row["users"], row["arm"]) for row in figures} == {
        (count, arm) for count in (1, users) for arm in ("vanilla", "hierchat")
    }
    for row in figures:
        assert row["replies"] == 6
        assert row["tokens"] == 6 * SETTINGS.max_new_tokens
        assert row["other_words"] == 0
        assert len(row["served"]) == row["users"]
        assert 0 < row["slowest_over_fastest"] <= 1
        assert row["tokens_per_second"] > 0


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SIZES", (5_000,))
    monkeypatch.setattr(index, "LOOKUPS", 5)
    monkeypatch.setattr(index, "APPENDS", 3)

    def quarter(act: Callable[[], object]) -> float:
        act()
        return 0.25

    # What is timed here may take less than the last digit that is kept.
    monkeypatch.setattr(index, "_seconds", quarter)


@pytest.mark.parametrize("corpus", [False, True])
def test_figures_for_every_size(tmp_path: Path, corpus: bool) -> None:
    out, text = tmp_path / "out.json", tmp_path / "text.txt"
    text.write_text(" ".join(random.Random(0).choices(["one", "two", "three", "four"], k=2_000)))
    asked = ["index", "--tokens", "20000", "--json", str(out)]
    assert main([*asked, "--corpus", str(text)] if corpus else asked) == 0
    said = json.loads(out.read_text())
    assert said["machine"]["cores"] > 0
    assert [row["tokens"] for row in said["sizes"]] == [5_000, 20_000]
    for row in said["sizes"]:
        for key in ("start_seconds", "sort_seconds", "store_seconds", "merge_seconds"):
            assert row[key] == 0.25
        for key in ("append_ms", "append_max_ms", "lookup_ms", "lookup_p99_ms", "tree_ms", "tree_p99_ms"):
            assert row[key] == 250
        assert row["file_mb"] * 1e6 > 4 * row["tokens"]
