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
    other = store.ensure_user("bob")
    places = [(user, "k", "a"), (user, "k", "b"), (user, "l", "a"), (other, "k", "a")]
    for number, place in enumerate(places):
        assert store.learned(*place) is None
        assert store.learn(*place, b"old")
        assert store.learn(*place, bytes([number]))
    with Store.open(path) as again:
        assert [again.learned(*place) for place in places] == [b"\0", b"\1", b"\2", b"\3"]


def test_it_goes_with_any_conversation_and_from_the_bytes(store: Store, user: int, path: Path) -> None:
    other = store.ensure_user("bob")
    conversations = [store.create_conversation(user) for _ in range(2)]
    store.learn(user, "k", "a", NOISE)
    store.learn(user, "l", "b", b"more")
    store.learn(other, "k", "a", b"his")
    assert pieces_of(NOISE, path) > 250
    delete_for_good(store, user, conversations[1])
    assert store.learned(user, "k", "a") is store.learned(user, "l", "b") is None
    assert store.learned(other, "k", "a") == b"his"
    assert pieces_of(NOISE, path) == 0


def test_what_was_learned_before_a_deletion_is_not_written_after_it(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    before = store.deletions(user)
    assert store.learn(user, "k", "a", b"early", deletions=before)
    delete_for_good(store, user, conversation)
    assert not store.learn(user, "k", "a", b"late", deletions=before)
    assert store.learned(user, "k", "a") is None
    assert store.learn(user, "k", "a", b"new", deletions=store.deletions(user))
    store.forget_learned(user)
    assert store.learned(user, "k", "a") is None
    assert store.deletions(user) == before + 2


def test_a_failed_deletion_forgets_nothing(store: Store, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = store.create_conversation(user)
    store.learn(user, "k", "a", b"value")

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("hierchat.store.deletion.forget_learned", fail)
    with pytest.raises(RuntimeError):
        delete_for_good(store, user, conversation)
    assert [c.id for c in store.conversations(user)] == [conversation]
    assert (store.learned(user, "k", "a"), store.deletions(user)) == (b"value", 0)


def test_nobody_learns_nothing(store: Store) -> None:
    assert not store.learn(999, "k", "a", b"value")
    assert store.deletions(999) == -1


def test_a_full_disk_keeps_what_was_there(store: Store, user: int) -> None:
    store.learn(user, "k", "a", b"old")
    db = store._idle[-1]
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(DatabaseUnwritable):
        store.learn(user, "k", "a", NOISE)
    assert store.learned(user, "k", "a") == b"old"


def test_costs_are_of_a_model_on_a_machine_and_stay(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    store.keep_latency("k", "here", b"old")
    store.keep_latency("k", "here", b"new")
    store.keep_latency("k", "there", b"far")
    delete_for_good(store, user, conversation)
    assert store.latency("k", "here") == b"new"
    assert store.latency("k", "there") == b"far"
    assert store.latency("l", "here") is None


def test_a_database_from_before_learns_too(path: Path) -> None:
    with closing(Database(path)) as db:
        migrations.apply(db, stop_before="m0004_learned")
        db.execute("INSERT INTO users (name, created_at) VALUES ('ann', 0)")
        db.conn.commit()
    with Store.open(path) as store:
        assert store.learn(store.ensure_user("ann"), "k", "a", b"value", deletions=0)
