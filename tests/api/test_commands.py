"""`hierchat keys`, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.cli.main import main
from hierchat.store import Store
from hierchat.store.records import NewMessage


@pytest.fixture
def keys(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["keys", *arguments, "--db", str(tmp_path / "chat.db")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_add_list_remove(keys, tmp_path: Path) -> None:
    assert "No keys yet" in keys("list")[1]
    code, key, said = keys("add", "editor", "--history", "--per-minute", "30", "--tokens-a-day", "100000")
    key = key.strip()
    assert code == 0
    assert key.startswith("hc-")
    assert len(key) > 40
    assert "shown only now" in said
    listed = keys("list")[1]
    assert "editor" in listed
    assert "30 a minute, 100,000 tokens a day" in listed
    assert key not in listed
    with Store.open(tmp_path / "chat.db") as store:
        found = store.keys.find(key)
        assert found is not None
        assert found.user_id is not None
        chat = store.chats.create(found.user_id)
        store.messages.add(found.user_id, chat, NewMessage(None, "an unusual word: xylograph"))
    code, _, said = keys("add", "editor")
    assert code == 1
    assert "There is a key called 'editor' already" in said
    assert keys("remove", "editor")[0] == 0
    assert b"xylograph" not in (tmp_path / "chat.db").read_bytes()
    with Store.open(tmp_path / "chat.db") as store:
        assert store.keys.find(key) is None
        assert store.users.ids() == {}
    code, _, said = keys("remove", "editor")
    assert code == 1
    assert "There is no key called 'editor'" in said


@pytest.mark.parametrize("limit", ["0", "-3", "many", "1.5"])
def test_a_limit_is_a_number(keys, limit: str) -> None:
    code, _, error = keys("add", "editor", f"--at-once={limit}")
    assert code == 2
    assert "is no limit" in error
