"""The command line of the measurements, as a user types it, and a session of several turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command says that cannot do what it was asked for."""
    assert main([str(argument) for argument in arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "did not expect" not in said
    return said


def test_wrong_arguments_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["session", "--turns", "x"])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: python -m benchmarks")


BENCH = {
    "decode": ["--arms", "vanilla", "--questions"],
    "record": ["--questions"],
    "agreement": ["--questions"],
    "tokens": ["--questions"],
    "session": ["--questions"],
    "replay": ["--arms", "hierchat", "--width", "4", "--traces"],
    "report": [],
}
OUT = {"record": "--out", "report": "--out"}


@pytest.mark.parametrize("kind", BENCH)
def test_files_that_bench_cannot_use(kind: str, places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (places / "binary").write_bytes(bytes(range(128, 256)))
    (places / "odd").write_text('{"a": 1}\n')
    (places / "list").write_text("[1]\n")
    for file in ("nowhere", "binary", "odd", "list"):
        said = refused(capsys, kind, *BENCH[kind], places / file, OUT.get(kind, "--json"), places / "out")
        assert str(places / file) in said
        assert "Error" not in said  # no class names
        assert "Errno" not in said
        assert "codec" not in said


@pytest.mark.parametrize("command", [["simulate"], ["forward"], ["session"], ["index"]])
def test_figures_that_could_not_be_written_are_not_measured(
    command: list[str], places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{places / 'no' / 'out'} cannot be written" in refused(
        capsys, *command, "--json", places / "no" / "out"
    )


@pytest.mark.usefixtures("tiny_in_the_catalogue")
def test_a_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.json"
    questions.write_text('{"turns": ["one", "two"]}\n\n{"turns": ["three", "four"], "category": "x"}\n')
    asked = ["session", "--model", "tiny", "--questions", str(questions), "--turns", "3"]
    assert main([*asked, "--max-new-tokens", "16", "--json", str(out)]) == 0
    shown = capsys.readouterr()
    result = json.loads(out.read_text())
    assert json.loads(shown.out) == result
    assert sum(line.startswith("turn") for line in shown.err.splitlines()) == 3
    assert result["model"] == "tiny"
    assert result["mismatches"] == 0
    assert result["messages_after_restart"] == 6
    assert [row["identical"] for row in result["turns"]] == [True] * 3
    assert all(1 <= row["tokens"] <= 16 for row in result["turns"])
    assert {"processor", "cores", "memory_gib", "torch"} <= set(result["machine"])
