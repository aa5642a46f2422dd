"""python -m hierchat stats."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.cli.main import main
from hierchat.store import Store

from .conftest import Talk


def test_a_table_by_day(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    last = talk.send("hello hello hello hello hello", max_new_tokens=60)
    turn = talk.store.replies.turn(talk.user, last.message_id)
    assert turn.figures
    assert main(["stats", "--db", str(talk.store.path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:9] == [
        "day",
        "replies",
        "tokens",
        "T",
        "speed-up",
        "draft",
        "ms",
        "proposed",
        "accepted",
    ]
    assert lines[1][1:4] == ["1", "60", f"{turn.figures.tokens_per_forward:.2f}"]
    assert lines[1][5] == f"{turn.figures.draft_ms / turn.figures.forwards:.2f}"
    assert lines[1][6] == str(turn.figures.proposed)
    assert lines[3][:2] == ["day", "context"]
    assert lines[4][1].endswith("%,")


def test_each_user_has_a_table(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    talk.send("hello")
    talk.other("bob [red]").send("hello")
    talk.other("carl")
    assert main(["stats", "--db", str(talk.store.path), "--days", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if line.startswith(("ann", "bob", "carl"))] == ["ann", "bob [red]"]
    assert sum(line.startswith("day ") and "replies" in line for line in lines) == 2


def test_nothing_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(tmp_path / "empty.db").close()
    assert main(["stats", "--db", str(tmp_path / "empty.db")]) == 0
    assert "No reply was measured" in capsys.readouterr().out


def test_no_database_is_an_error_and_none_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, foreign = tmp_path / "missing.db", tmp_path / "foreign.db"
    foreign.write_text("Dear diary, " * 100)
    assert main(["stats", "--db", str(missing)]) == main(["stats", "--db", str(foreign)]) == 1
    told = capsys.readouterr().err
    assert f"There is no {missing}." in told
    assert f"{foreign} cannot be read" in told
    assert not missing.exists()
