"""`hierchat keys` and `hierchat stats`, as a user types them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hierchat.cli.main import main
from hierchat.store import Store
from tests.chat.conftest import Talk, talk_on
from tests.testing.deleting import on_disk
from tests.testing.stores import replied
from tests.testing.tiny_chat import ready_slot

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, db: Path = store.path) -> tuple[int, str, str]:
        code = main([*arguments, "--db", str(db)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_keys_are_added_listed_and_removed(run: Run, store: Store) -> None:
    assert "No keys yet" in run("keys", "list")[1]
    limits = "--per-minute", "30", "--tokens-a-day", "100000"
    code, key, said = run("keys", "add", "editor", "--history", *limits)
    key = key.strip()
    assert code == 0
    assert key.startswith("hc-")
    assert len(key) > 40
    assert "shown only now" in said
    listed = run("keys", "list")[1]
    assert "editor" in listed
    assert "30 a minute, 100,000 tokens a day" in listed
    assert key not in listed
    replied(store, store.keys.find(key).user_id, asked="an unusual word: xylograph")
    code, _, said = run("keys", "add", "editor")
    assert (code, "There is a key called 'editor' already" in said) == (1, True)
    assert run("keys", "remove", "editor")[0] == 0
    assert b"xylograph" not in on_disk(store.path)
    assert store.keys.find(key) is None
    assert store.users.ids() == {}
    code, _, said = run("keys", "remove", "editor")
    assert (code, "There is no key called 'editor'" in said) == (1, True)


@pytest.mark.parametrize("limit", ["0", "-3", "many", "1.5"])
def test_a_limit_is_a_number(run: Run, limit: str) -> None:
    code, _, error = run("keys", "add", "editor", f"--at-once={limit}")
    assert (code, "is no limit" in error) == (2, True)


def test_each_user_has_a_table_by_day(run: Run, store: Store) -> None:
    talk: Talk = talk_on(store, ready_slot())
    last = talk.send("hello hello hello hello hello", max_new_tokens=60)
    figures = store.replies.turn(talk.user, last.message_id).figures
    lines = [line.split() for line in run("stats")[1].splitlines()]
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
    assert lines[1][1:4] == ["1", "60", f"{figures.tokens_per_forward:.2f}"]
    assert lines[1][5:7] == [f"{figures.draft_ms / figures.forwards:.2f}", str(figures.proposed)]
    assert lines[3][:2] == ["day", "context"]
    assert lines[4][1].endswith("%,")
    talk.other("bob [red]").send("hello")
    talk.other("carl")
    told = run("stats", "--days", "1")[1].splitlines()
    assert [line.strip() for line in told if line.startswith(("ann", "bob", "carl"))] == ["ann", "bob [red]"]
    assert sum(line.startswith("day ") and "replies" in line for line in told) == 2


def test_nothing_measured_and_no_database(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("stats")
    assert (code, "No reply was measured" in out) == (0, True)
    missing, foreign = tmp_path / "missing.db", tmp_path / "foreign.db"
    foreign.write_text("Dear diary, " * 100)
    for db, said in ((missing, f"There is no {missing}."), (foreign, f"{foreign} cannot be read")):
        code, _, told = run("stats", db=db)
        assert (code, said in told) == (1, True)
    assert not missing.exists()
