"""Results of comparisons: each user's own, and gone with what they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.store import NotFound, Store
from tests.testing.deleting import delete_for_good


def held(path: Path, word: bytes) -> bool:
    return any(word in file.read_bytes() for file in path.parent.iterdir())


def kept(store: Store, user: int, question: str = "why?", result: str = "{}") -> tuple[int, int]:
    chat = store.chats.create(user)
    return chat, store.comparisons.add(user, chat, question, 12.5, result)


def test_the_newest_come_first_and_each_can_be_opened(store: Store, user: int) -> None:
    ids = [kept(store, user, f"question {number}")[1] for number in range(3)]
    assert [one.id for one in store.comparisons.all(user, 2)] == [ids[2], ids[1]]
    one = store.comparisons.get(user, ids[0])
    assert (one.question, one.created_at, one.result) == ("question 0", 12.5, "{}")


def test_nobody_else_sees_or_deletes_them(store: Store, user: int) -> None:
    bob = store.users.ensure("bob")
    chat, mine = kept(store, user)
    assert store.comparisons.all(bob, 9) == []
    for peek in (
        lambda: store.comparisons.get(bob, mine),
        lambda: store.comparisons.delete(bob, mine),
        lambda: store.comparisons.add(bob, chat, "q", 0.0, "{}"),
    ):
        with pytest.raises(NotFound):
            peek()
    assert store.comparisons.delete_all(bob) == 0
    assert store.comparisons.get(user, mine).id == mine


def test_deleting_takes_them_from_the_file(store: Store, user: int, path: Path) -> None:
    kept(store, user, result='"aaardvark"')
    _, second = kept(store, user, result='"bbbadger"')
    store.comparisons.delete(user, second)
    assert (held(path, b"aaardvark"), held(path, b"bbbadger")) == (True, False)
    assert store.comparisons.delete_all(user) == 1
    assert (store.comparisons.all(user, 9), held(path, b"aaardvark")) == ([], False)


def test_they_go_with_their_chat_and_come_back_with_it(store: Store, user: int, path: Path) -> None:
    chat, one = kept(store, user, result='"cccaracal"')
    store.chats.hide(user, chat)
    with pytest.raises(NotFound):
        store.comparisons.get(user, one)
    store.chats.restore(user, chat)
    assert store.comparisons.get(user, one).id == one
    delete_for_good(store, user, chat)
    assert (store.comparisons.all(user, 9), held(path, b"cccaracal")) == ([], False)


def test_nothing_is_kept_of_an_incognito_chat(store: Store, user: int) -> None:
    chat = store.chats.begin_incognito(user)
    assert store.comparisons.add(user, chat, "why?", 0.0, "{}") == 0
    assert store.comparisons.all(user, 9) == []


def test_they_go_with_their_user(store: Store, user: int, path: Path) -> None:
    kept(store, user, "dddingo")
    store.users.forget(user)
    assert not held(path, b"dddingo")
