"""Backups that are made by themselves: when, how many, what is not in them; and one that is put back."""

import shutil
import sqlite3
import time
from collections import namedtuple
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlite_utils import Database

from hierchat.store import NotFound, Store, StoreError, backups
from hierchat.store.backups import KEPT, backups_of, require_whole, restore
from hierchat.store.connection import migrations
from hierchat.store.errors import DatabaseLocked
from hierchat.store.records import NewMessage
from tests.testing.deleting import delete_for_good
from tests.testing.secrets import fill, rows_of
from tests.testing.stores import new_store

Disk = namedtuple("Disk", "total used free")


@pytest.fixture(autouse=True)
def _a_disk_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Disk(100 << 30, 50 << 30, 50 << 30))


def names(store: Store) -> list[str]:
    return [copy.name for copy in store.backups.all()]


def test_one_a_day_is_made_and_the_latest_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the clock is set back: numbers tell which are the latest."""
    (store.path.parent / "backups").mkdir()
    by_hand = store.path.parent / "backups" / "history-2026-01-01-120000.db"
    by_hand.write_bytes(b"")
    days = [f"2026-03-{day:02d}" for day in range(1, 11)] + ["2024-12-31"]
    for day in days:
        monkeypatch.setattr(backups.time, "strftime", lambda form, *at, day=day: day)
        assert store.backups.due()
        assert store.backups.make()
        assert not store.backups.due()
    assert names(store) == [
        f"history-{number:05d}-{day}.db" for number, day in reversed([*enumerate(days, 1)][-KEPT:])
    ]
    assert by_hand.exists()


def test_none_is_made_on_a_nearly_full_disk_or_while_another_process_makes_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for total, free in (
        (100 << 30, 2 << 30),
        (100 << 30, 4 << 30),  # less than a twentieth of it
        (2 << 30, (1 << 30) + 1),  # the copy itself would take it below
    ):
        with monkeypatch.context() as patch:
            disk = Disk(total, 0, free)
            patch.setattr(shutil, "disk_usage", lambda folder, disk=disk: disk)
            assert store.backups.make() is None
    assert names(store) == []
    part = store.path.parent / "backups" / f"history-00001-{time.strftime('%Y-%m-%d')}.db.part"
    part.write_bytes(b"half")
    assert store.backups.make() is None
    assert part.read_bytes() == b"half"


def test_what_is_hidden_incognito_or_a_guest_s_is_in_no_backup(store: Store, tmp_path: Path) -> None:
    fill(store, store.guests.begin(), "glockenspielist")
    found = fill(store, "ann", "xylophonist")
    secret = store.chats.begin_incognito(found.user)
    store.messages.add(found.user, secret, NewMessage(None, "a theremin"))
    gone = store.chats.create(found.user)
    store.messages.add(found.user, gone, NewMessage(None, "a kazoo"))
    store.chats.hide(found.user, gone)
    store.connection.backup(tmp_path / "copy.db")
    data = (tmp_path / "copy.db").read_bytes()
    assert b"xylophonist" in data
    assert [word for word in (b"glockenspielist", b"theremin", b"kazoo") if word in data] == []
    assert store.messages.path(found.user, secret)[0].text == "a theremin"  # here it goes on
    assert store.guests._guests


def test_forgetting_reaches_the_backups_too(store: Store) -> None:
    found, other = fill(store, "ann", "xylophonist"), fill(store, "ben", "glockenspielist")
    copy = store.backups.make()
    assert b"xylophonist" in copy.read_bytes()
    assert store.users.forget(found.user)
    assert b"xylophonist" not in copy.read_bytes()
    with Store.open(copy) as old:
        assert rows_of(old, other.user)["token_log"]
    copy.write_bytes(b"no database any more")
    assert not store.users.forget(other.user)  # told as a file that is busy is


def test_a_chat_leaves_the_backups_where_that_is_wanted_and_others_stay(store: Store) -> None:
    """Also a chat that was deleted before; a fork of it keeps its texts. A chat of the same number is another one."""
    found, other = fill(store, "ann", "xylophonist"), fill(store, "ben", "glockenspielist")
    chats = store.backups.identities("conversations", found.user)
    kept = store.chats.create(found.user)
    store.messages.add(found.user, kept, NewMessage(None, "a theremin"))
    copies = [store.backups.make(), store.backups.make()]
    delete_for_good(store, found.user, found.ids["chat"])
    assert all(copy and b"xylophonist" in copy.read_bytes() for copy in copies)
    assert store.backups.forget_chats("ann", {(id, made + 1) for id, made in chats})
    assert store.backups.forget_chats("ben", chats)
    assert all(copy and b"xylophonist" in copy.read_bytes() for copy in copies)
    for chat, _ in chats - {(found.ids["chat"], 0.0)}:
        with suppress(NotFound):
            delete_for_good(store, found.user, chat)
    assert store.backups.forget_missing("ann", found.user)
    for copy in filter(None, copies):
        data = copy.read_bytes()
        assert b"theremin" in data
        assert b"glockenspielist" in data
        with Store.open(copy) as old:
            ids = {chat.id for chat in old.chats.find(found.user)}
            assert ids == {kept}
            assert rows_of(old, other.user)["token_log"]
            assert not rows_of(old, found.user)["token_log"]


def test_a_backup_with_an_older_schema_loses_the_chat_too(path: Path) -> None:
    with closing(Database(path)) as db:
        migrations.apply(db, stop_before="m0008_attachments")
        db.execute("INSERT INTO users (name, created_at) VALUES ('ann', 0)")
        db.execute(
            "INSERT INTO conversations (user_id, title, created_at, updated_at) VALUES (1, 'xylophonist', 7, 7)"
        )
        db.conn.commit()
    with Store.open(path) as store:
        (copy,) = backups_of(path)
        assert b"xylophonist" in copy.read_bytes()
        assert store.backups.forget_chats("ann", {(1, 7.0)})
        assert b"xylophonist" not in copy.read_bytes()


def test_what_was_not_rewritten_is_at_the_next_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the process is killed between the deletion and the end of VACUUM."""
    with new_store(path) as store:
        found = fill(store, "ann", "xylophonist")
        monkeypatch.setattr(store.connection, "rewrite", lambda: False)
        store.users.forget(found.user)
    rewritten: list[Path] = []
    rewrite = backups.Connection.rewrite

    def noted(self: backups.Connection) -> bool:
        rewritten.append(self.path)
        return rewrite(self)

    monkeypatch.setattr(backups.Connection, "rewrite", noted)
    for _ in range(2):
        Store.open(path).close()
    assert rewritten == [path]


def test_a_backup_is_put_back_and_what_was_there_is_kept(path: Path, tmp_path: Path) -> None:
    """A damaged file, too, and its log."""
    with new_store(path) as store:
        found = fill(store, "ann", "xylophonist")
        store.learned.keep(found.user, "m", "acceptance", b"what was learned")
        rows = rows_of(store, found.user)
        store.connection.backup(copy := tmp_path / "copy.db")
        with pytest.raises(DatabaseLocked, match="Close that program"):
            restore(copy, path)
        store.users.forget(found.user)
        store.users.ensure("ben")
    aside = restore(copy, path)
    with Store.open(aside) as before:
        assert list(before.users.ids()) == ["ben"]
    path.write_bytes(b"damaged")
    log = path.with_name(path.name + "-wal")
    log.write_bytes(b"a log of something else")
    aside = restore(copy, path)
    assert aside.read_bytes() == b"damaged"
    assert aside.with_name(aside.name + "-wal").read_bytes() == b"a log of something else"
    with Store.open(path) as store:
        now = rows_of(store, found.user)
        for table in ("token_log", "learned", "turns", "presets", "chat_settings"):  # what drafts, too
            assert now[table] == rows[table], table
            assert now[table]
        assert [one.title for one in store.chats.find(found.user)] == ["Of a xylophonist"]


def test_what_is_no_whole_backup_is_refused(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with new_store(path) as store:
        for number in range(100):
            user = store.users.ensure(f"user {number}")
            store.messages.add(user, store.chats.create(user), NewMessage(None, f"question {number} " * 100))
        store.connection.backup(copy)
    require_whole(copy)
    whole = copy.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[: -3 * 4096] + b"\xa5" * 4096 + whole[-2 * 4096 :]):
        copy.write_bytes(broken)
        with pytest.raises(StoreError, match="nother"):
            require_whole(copy)
    for change, said in (
        ("UPDATE _sqlite_migrations SET name = 'm9' WHERE name LIKE 'm0034%'", "newer hierchat"),
        ("DELETE FROM _sqlite_migrations", "nother"),  # a foreign one
    ):
        copy.write_bytes(whole)
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            db.execute(change)
        with pytest.raises(StoreError, match=said):
            require_whole(copy)
    copy.unlink()
    with pytest.raises(StoreError, match="nother"):
        require_whole(copy)
