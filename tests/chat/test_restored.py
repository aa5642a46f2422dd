"""A restored backup drafts as the database did: the same tokens by the same drafts, from the same replies."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from hierchat.chat import user_data
from hierchat.runtime import history_index
from hierchat.store import Store
from hierchat.store.backups import Backups, backups_of, require_whole, restore
from tests.testing.tiny_chat import ready_slot

from .conftest import talk_on


def test_a_restored_backup_drafts_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_index, "STORED_TOKENS", 16)
    path = tmp_path / "chat.db"
    with Store.open(path) as store:
        talk = talk_on(store, ready_slot())
        for number in range(4):
            talk.other().send(f"Count to {number}", temperature=0.0, max_new_tokens=40)
        talk.service.close()
        store.connection.backup(copy := path.with_name("copy.db"))
    shutil.copyfile(path, same := path.with_name("same.db"))
    path.write_bytes(b"lost")
    restore(copy, path)

    def next_reply(database: Path) -> tuple[Any, ...]:
        with Store.open(database) as store:
            talk = talk_on(store, ready_slot())
            (orders,) = store.connection._idle[-1].execute("SELECT count(*) FROM suffix_runs").fetchone()
            last = talk.other().send("Count to 2", temperature=0.0, max_new_tokens=40)
            turn = store.replies.turn(talk.user, last.message_id or 0)
            assert turn
            assert turn.figures
            talk.service.close()
            figures = turn.figures
            return orders, last.text, figures.forwards, figures.proposed, figures.accepted, figures.sources

    before, restored = next_reply(same), next_reply(path)
    assert restored == before
    assert restored[0] > 0
    assert restored[4] > 20  # of 40 tokens


def test_a_backup_is_made_by_itself_and_what_keeps_it_from_that_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried, hindered = threading.Semaphore(0), [OSError("no room")] * 3

    def make(backups: Backups, *args: Any) -> Any:
        try:
            if hindered:
                raise hindered.pop()
            return made(backups, *args)
        finally:
            tried.release()

    made = Backups.make
    monkeypatch.setattr(Backups, "make", make)
    monkeypatch.setattr(user_data, "BACKUP_SECONDS", 0.01)
    with Store.open(tmp_path / "chat.db") as store:
        talk = talk_on(store, ready_slot())
        for _ in range(4):
            assert tried.acquire(timeout=30)
        talk.service.close()
        (copy,) = backups_of(store.path)
        require_whole(copy)
    told = [one for one in caplog.records if one.name == user_data.__name__]
    assert [one.levelname for one in told] == ["WARNING"]
