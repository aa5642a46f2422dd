"""`hierchat keys`, as a user types it."""

from collections.abc import Callable

import pytest

from hierchat.cli.main import main
from hierchat.store import Store
from tests.testing.deleting import on_disk
from tests.testing.stores import replied

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--db", str(store.path)])
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
