"""The command line of the measurements, as a user types it: each measures a tiny model, and says what it cannot do."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import forward, index, prompts, simulate
from benchmarks.__main__ import main
from tests.testing.questions import questions_file


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """The exit code, and what was said on standard error."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "did not expect" not in said
    return code, said


FEW = "--model tiny --max-new-tokens 8"
ARMS = "--arms vanilla,hierchat,llama.cpp --limit 3"
MEASURED = {
    "decode": (f"{FEW} {ARMS} --temperature 0.8 --questions", "arms"),
    "log": (f"{FEW} {ARMS} --log", "arms"),
    "load": (f"{FEW} --arms vanilla,hierchat --users 1,2 --questions", "loads"),
    "session": (f"{FEW} --turns 3 --questions", "turns"),
    "prompts": ("--model tiny --peers llama.cpp --chat-tokens 120 --documents 50 --questions", "rows"),
    "agreement": (f"{FEW} --limit 1 --questions", "positions"),
    "forward": ("--model tiny --contexts 8", "contexts"),
    "index": ("--tokens 20000", "sizes"),
    "step": ("--vocabulary 50000 --max-new-tokens 40", "arms"),
    "simulate": ("", "rows"),
}
"""Arguments, the last of them for a file of questions where it needs one, and a field of the figures."""


@pytest.mark.usefixtures("tiny_in_the_catalogue")
@pytest.mark.parametrize("kind", MEASURED)
def test_figures_are_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, name, value in (
        (index, "SIZES", (5_000,)),
        (index, "LOOKUPS", 5),
        (index, "APPENDS", 3),
        (forward, "REPEATS", 2),
        (forward, "READINGS", 1),
        (prompts, "MESSAGE", 20),
        (prompts, "QUIET_SECONDS", 0.6),
        (simulate, "MACHINES", simulate.MACHINES[:1]),
        (simulate, "SHIFTS", (0.0,)),
        (simulate, "search_ms", partial(simulate.search_ms, levels=3)),
    ):
        monkeypatch.setattr(module, name, value)
    arguments, name = MEASURED[kind]
    file = [questions_file(tmp_path)] if arguments.endswith(("--questions", "--log")) else []
    out = tmp_path / "out.json"
    assert run(capsys, kind, *arguments.split(), *file, "--json", out)[0] == 0
    figures: dict[str, Any] = json.loads(out.read_text())
    assert figures[name]
    if kind in ("decode", "log"):
        assert [arm["mismatches"] for arm in figures["arms"]] == [0, 0]
        assert figures["absent"] == [{"arm": "llama.cpp", "reason": "tiny does not come from a GGUF file"}]
        assert {"revision", "threads", "processor"} <= set(figures["machine"])
    if kind == "load":
        assert {(row["users"], row["arm"]) for row in figures["loads"]} == {
            (count, arm) for count in (1, 2) for arm in ("vanilla", "hierchat")
        }
        for row in figures["loads"]:
            assert row["tokens"] > 0
            assert row["other_words"] == 0
            assert len(row["served"]) == row["users"]
    if kind == "prompts":
        assert figures["absent"] == "tiny does not come from a GGUF file"
        rows = {row["what"]: row for row in figures["rows"]}
        assert (
            rows["new chat"]["read"] == rows["new chat"]["prompt"] - 1
        )  # the last token is of the first step
        for what in ("follow-up", "edit in the middle"):
            assert rows[what]["read"] < rows[what]["prompt"] - 20
    if kind == "session":
        assert (figures["mismatches"], figures["messages_after_restart"]) == (0, 6)


@pytest.mark.usefixtures("tiny_in_the_catalogue")
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, questions = tmp_path / "out.json", questions_file(tmp_path)
    for more, said in (
        (["--arms", "vanila"], "Did you mean vanilla?"),
        (["--backend", "blcks"], "Did you mean blocks?"),
        (["--model", "tyny"], "Did you mean tiny?"),
        (["--corpus", "x.jsonl"], "x.jsonl: there is no such file or folder"),
        (["--json", "/nowhere/out.json"], "/nowhere/out.json cannot be written"),
        (["--temperature", "-1"], "--temperature: "),
    ):
        plain = [*FEW.split(), "--arms", "vanilla", "--json", out, "--questions", questions]
        code, told = run(capsys, "decode", *plain, *more)
        assert (code, said in told) == (2, True), told
