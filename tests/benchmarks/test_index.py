"""`benchmarks index` from the command line to its file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import index
from benchmarks.__main__ import main


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


def test_a_corpus_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["index", "--corpus", str(tmp_path / "none"), "--json", str(tmp_path / "out.json")]
    assert main(asked) == 2
    assert "cannot be read" in capsys.readouterr().err
