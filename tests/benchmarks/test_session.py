"""benchmarks session: one conversation, asked twice turn by turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.session import CONVERSATION, read_turns
from hierchat.checks.questions import RequestError

pytestmark = pytest.mark.usefixtures("tiny_in_the_catalogue")


def ask(*arguments: str | Path) -> int:
    return main(["session", "--model", "tiny", *map(str, arguments)])


def test_a_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, out = tmp_path / "questions.jsonl", tmp_path / "out.json"
    questions.write_text('{"turns": ["one", "two"]}\n\n{"turns": ["three", "four"], "category": "x"}\n')
    assert ask("--questions", questions, "--turns", 3, "--max-new-tokens", 16, "--json", out) == 0
    shown = capsys.readouterr()
    result = json.loads(out.read_text())
    assert json.loads(shown.out) == result
    assert [line.split(":")[0] for line in shown.err.splitlines() if line.startswith("turn")] == [
        "turn 1",
        "turn 2",
        "turn 3",
    ]
    assert result["model"] == "tiny"
    assert result["mismatches"] == 0
    assert result["messages_after_restart"] == 6
    assert [row["identical"] for row in result["turns"]] == [True] * 3
    assert all(1 <= row["tokens"] <= 16 for row in result["turns"])
    assert {"processor", "cores", "memory_gib", "torch"} <= set(result["machine"])


@pytest.mark.parametrize(
    "text",
    ["not JSON", "[1]", '{"question": "x"}', '{"turns": "one"}', '{"turns": [1]}', '{"turns": []}', ""],
)
def test_bad_questions(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text(text)
    assert ask("--questions", questions) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"hierchat: {questions}: ")
    assert '"turns"' in said


def test_no_questions_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--questions", tmp_path / "none.jsonl") == 1
    assert capsys.readouterr().err.startswith(f"hierchat: {tmp_path / 'none.jsonl'} cannot be read")


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CONFIG" / "tiny" / "config.json").unlink()
    assert ask() == 1
    assert str(tmp_path / "CONFIG" / "tiny") in capsys.readouterr().err


def test_settings_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--temperature", -1) == 1
    assert "temperature" in capsys.readouterr().err


def test_questions_of_our_own() -> None:
    assert read_turns(None, 3) == list(CONVERSATION[:3])
    with pytest.raises(RequestError):
        read_turns(Path("/nowhere/questions.jsonl"), 3)
