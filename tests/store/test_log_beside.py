"""The write-ahead log: folded into the file, and missed where a file was copied without it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hierchat.store import DatabaseCorrupt, NewMessage, Store, connection

KILLED = """
import os, signal, sys
from pathlib import Path
from hierchat.store import NewMessage, Store, connection
connection.FOLD_SECONDS = 3600
store = Store.open(Path(sys.argv[1]))
user = store.users.ensure("ann")
store.messages.add(user, store.chats.create(user), NewMessage(None, f"question {sys.argv[2]}"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path, number: int) -> None:
    command = [sys.executable, "-c", KILLED, str(path), str(number)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -9


def titles(path: Path) -> list[str]:
    with Store.open(path) as store:
        return sorted(c.title for c in store.chats.find(store.users.ensure("ann")))


def copy_of(path: Path) -> Path:
    """The one file, as somebody copies it who knows of no other."""
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    return copy


def test_after_kills_the_file_has_all_but_the_last_run(path: Path) -> None:
    for number in range(3):
        killed(path, number)
    assert path.with_name(path.name + "-wal").stat().st_size
    assert titles(copy_of(path)) == ["question 0", "question 1"]
    assert titles(path) == ["question 0", "question 1", "question 2"]
    assert titles(copy_of(path)) == ["question 0", "question 1", "question 2"]


def test_a_copy_without_its_log_is_told(path: Path) -> None:
    killed(path, 0)
    copy = copy_of(path)
    with Store.open(copy) as store:
        assert "history.db-wal was not copied" not in store.notice
        assert "copy.db-wal was not copied with it" in store.notice
        assert "hierchat backup" in store.notice
    for whole in (copy, path):  # told once; and here the log is there
        with Store.open(whole) as store:
            assert store.notice == ""


def test_a_copy_of_a_file_in_use_is_told_and_a_backup_is_whole(
    store: Store, user: int, path: Path, tmp_path: Path
) -> None:
    with Store.open(copy_of(path)) as copy:
        assert "was not copied with it" in copy.notice
    store.connection.backup(tmp_path / "whole.db")
    with Store.open(tmp_path / "whole.db") as backup, Store.open(path) as beside:
        assert backup.notice == beside.notice == ""
    store.close()
    with Store.open(copy_of(path)) as copy:
        assert copy.notice == ""


def test_an_empty_file_without_its_log_is_refused(path: Path) -> None:
    """As one was left by eight kills of hierchat 0.2: 4,096 bytes, and every chat in the log."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    before = path.read_bytes()
    assert len(before) == 4096
    with pytest.raises(DatabaseCorrupt, match=r"history\.db-wal, which is not beside it"):
        Store.open(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["history.db"]


def test_a_file_is_never_empty_beside_a_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill in the first second would leave what is refused."""
    seen: list[int] = []
    enable = connection.Database.enable_wal

    def looked_at(db: connection.Database) -> None:
        seen.append(db["messages"].count)
        enable(db)

    monkeypatch.setattr(connection.Database, "enable_wal", looked_at)
    Store.open(path).close()
    assert seen == [0]


def test_some_seconds_after_a_write_it_is_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FOLD_SECONDS", 0.01)
    log = path.with_name(path.name + "-wal")
    with Store.open(path) as store, closing(sqlite3.connect(path)) as reader:
        user = store.users.ensure("ann")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM users").fetchone()  # somebody reads for long
        store.messages.add(user, store.chats.create(user), NewMessage(None, "question"))
        assert not store.connection.fold()
        assert log.stat().st_size
        reader.rollback()
        for _ in range(2_000):
            if not log.stat().st_size:
                break
            connection.time.sleep(0.01)
        assert log.stat().st_size == 0
        assert titles(copy_of(path)) == ["question"]


def test_closing_folds_it_in_beside_another_process(path: Path) -> None:
    with Store.open(path), Store.open(path) as store:
        user = store.users.ensure("ann")
        store.messages.add(user, store.chats.create(user), NewMessage(None, "question"))
        store.close()
        assert titles(copy_of(path)) == ["question"]
