"""Pinned and archived conversations."""

from __future__ import annotations

import pytest

from hierchat.store import Mark, NewMessage, NewTurn, NotFound, Store, TurnFigures


def titles(store: Store, user: int, *query: str, archived: bool = False) -> list[str]:
    return [c.title for c in store.chats.find(user, *query, archived=archived)]


@pytest.fixture
def ids(store: Store, user: int) -> dict[str, int]:
    return {title: store.chats.create(user, title) for title in ("chat A", "chat B", "chat C")}


def test_pinned_ones_come_first(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.pin(user, ids["chat A"], True)
    assert titles(store, user) == ["chat A", "chat C", "chat B"]
    assert [c.pinned for c in store.chats.find(user)] == [True, False, False]
    store.chats.pin(user, ids["chat A"], False)
    assert titles(store, user) == ["chat C", "chat B", "chat A"]


def test_archived_ones_leave_the_list_and_are_found(store: Store, user: int, ids: dict[str, int]) -> None:
    store.chats.pin(user, ids["chat C"], True)
    store.chats.archive(user, ids["chat C"], True)
    assert titles(store, user) == ["chat B", "chat A"]
    assert titles(store, user, archived=True) == ["chat C"]
    assert store.chats.count_archived(user) == 1
    assert titles(store, user, "chat") == ["chat B", "chat A", "chat C"]  # last, and no longer pinned
    store.chats.archive(user, ids["chat C"], False)
    assert titles(store, user) == ["chat C", "chat B", "chat A"]
    assert not store.chats.get(user, ids["chat C"]).pinned
    assert store.chats.count_archived(user) == 0


def test_archived_ones_draft(store: Store, user: int, ids: dict[str, int]) -> None:
    question = store.messages.add(user, ids["chat A"], NewMessage(None, "?"))
    reply = store.replies.begin(user, ids["chat A"], question, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, "text", [1], ["target"])
    store.replies.finish(reply, "text", "complete", TurnFigures())
    store.chats.archive(user, ids["chat A"], True)
    assert [id for id, _ in store.history.texts(user, "k", "written", Mark())[0]] == [reply]


def test_only_ones_own(store: Store, ids: dict[str, int]) -> None:
    bob = store.users.ensure("bob")
    for change in (store.chats.pin, store.chats.archive):
        with pytest.raises(NotFound):
            change(bob, ids["chat A"], True)
