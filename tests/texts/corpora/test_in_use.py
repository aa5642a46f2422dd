"""Where corpora reach what drafts: the program has the user's, a measurement has the one that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main as benchmarks
from hierchat.checks import runs
from hierchat.cli.main import main as hierchat
from hierchat.drafting.suffix_index import BREAK
from hierchat.runtime.loading import load_served_model
from hierchat.runtime.served_model import ServedModel
from tests.testing import tiny_chat as tiny


@pytest.fixture(autouse=True)
def whole_model(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tiny` has weights, and the user has added a corpus for it."""
    tiny.model().save_pretrained(places / "models" / "tiny")
    tiny.tokenizer().save_pretrained(places / "models" / "tiny")
    (places / "mine.txt").write_text("The user added this.")
    assert hierchat(["corpus", "add", str(places / "mine.txt")]) == 0


@pytest.mark.parametrize("command", [["decode", "--arms", "vanilla,hierchat"], ["verify"]])
def test_a_measurement_has_what_it_names(
    places: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    seen: list[ServedModel] = []

    def loading(*arguments: Any, **named: Any) -> ServedModel:
        seen.append(load_served_model(*arguments, **named))
        return seen[-1]

    monkeypatch.setattr(runs, "load_served_model", loading)
    (places / "questions.jsonl").write_text(json.dumps({"turns": ["what?"]}))
    (places / "extra.md").write_text("Extra text.")
    fixed = ["--questions", str(places / "questions.jsonl"), "--json", str(places / "out.json")]
    main = hierchat if command == ["verify"] else benchmarks
    assert main([*command, *fixed, "--max-new-tokens", "4"]) == 0
    assert main([*command, *fixed, "--max-new-tokens", "4", "--corpus", str(places / "extra.md")]) == 0
    assert [[one.name for one in served.statistics] for served in seen] == [[], ["extra"]]
    (extra,) = seen[1].statistics
    assert tiny.tokenizer().decode(extra.tokens[:-1]) == "Extra text."
    assert np.count_nonzero(extra.tokens == BREAK) == 1
    assert json.loads((places / "out.json").read_text())["settings"]["corpus"] == str(places / "extra.md")
