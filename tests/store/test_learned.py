"""What was learned: kept per user and model, and gone with the first conversation that is deleted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlite_utils import Database

from hierchat.store import DatabaseUnwritable, Store
from hierchat.store.migrations import migrations
from tests.testing.deleting import delete_for_good

NOISE = np.random.default_rng(0).bytes(300_000)


def pieces_of(value: bytes, path: Path) -> int:
    """How many of its pieces are found in the files."""
    data = b"".join(file.read_bytes() for file in path.parent.iterdir())
    return sum(value[at : at + 32] in data for at in range(0, len(value) - 32, 997))


def test_each_user_model_and_kind_has_its_own(store: Store, user: int, path: Path) -> None:
    other = store.users.ensure("bob")
    places = [(user, "k", "a"), (user, "k", "b"), (user, "l", "a"), (other, "k", "a")]
    for number, place in enumerate(places):
        assert store.learned.get(*place) is None
        assert store.learned.keep(*place, b"old")
        assert store.learned.keep(*place, bytes([number]))
    with Store.open(path) as again:
        assert [again.learned.get(*place) for place in places] == [b"\0", b"\1", b"\2", b"\3"]


def test_it_goes_with_any_conversation_and_from_the_bytes(store: Store, user: int, path: Path) -> None:
    other = store.users.ensure("bob")
    conversations = [store.chats.create(user) for _ in range(2)]
    store.learned.keep(user, "k", "a", NOISE)
    store.learned.keep(user, "l", "b", b"more")
    store.learned.keep(other, "k", "a", b"his")
    assert pieces_of(NOISE, path) > 250
    delete_for_good(store, user, conversations[1])
    assert store.learned.get(user, "k", "a") is store.learned.get(user, "l", "b") is None
    assert store.learned.get(other, "k", "a") == b"his"
    assert pieces_of(NOISE, path) == 0


def test_what_was_learned_before_a_deletion_is_not_written_after_it(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    before = store.users.deletions(user)
    assert store.learned.keep(user, "k", "a", b"early", deletions=before)
    delete_for_good(store, user, conversation)
    assert not store.learned.keep(user, "k", "a", b"late", deletions=before)
    assert store.learned.get(user, "k", "a") is None
    assert store.learned.keep(user, "k", "a", b"new", deletions=store.users.deletions(user))
    store.learned.forget(user)
    assert store.learned.get(user, "k", "a") is None
    assert store.users.deletions(user) == before + 2


def test_a_failed_deletion_forgets_nothing(store: Store, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = store.chats.create(user)
    store.learned.keep(user, "k", "a", b"value")

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("hierchat.store.chats.forget_learned", fail)
    with pytest.raises(RuntimeError):
        delete_for_good(store, user, conversation)
    assert [c.id for c in store.chats.find(user)] == [conversation]
    assert (store.learned.get(user, "k", "a"), store.users.deletions(user)) == (b"value", 0)


def test_nobody_learns_nothing(store: Store) -> None:
    assert not store.learned.keep(999, "k", "a", b"value")
    assert store.users.deletions(999) == -1


def test_a_full_disk_keeps_what_was_there(store: Store, user: int) -> None:
    store.learned.keep(user, "k", "a", b"old")
    db = store.connection._idle[-1]
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(DatabaseUnwritable):
        store.learned.keep(user, "k", "a", NOISE)
    assert store.learned.get(user, "k", "a") == b"old"


def test_costs_are_of_a_model_on_a_machine_and_stay(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    store.learned.keep_latency("k", "here", b"old")
    store.learned.keep_latency("k", "here", b"new")
    store.learned.keep_latency("k", "there", b"far")
    delete_for_good(store, user, conversation)
    assert store.learned.latency("k", "here") == b"new"
    assert store.learned.latency("k", "there") == b"far"
    assert store.learned.latency("l", "here") is None


def test_a_database_from_before_learns_too(path: Path) -> None:
    with closing(Database(path)) as db:
        migrations.apply(db, stop_before="m0004_learned")
        db.execute("INSERT INTO users (name, created_at) VALUES ('ann', 0)")
        db.conn.commit()
    with Store.open(path) as store:
        assert store.learned.keep(store.users.ensure("ann"), "k", "a", b"value", deletions=0)
