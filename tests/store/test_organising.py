"""Pinned and archived conversations."""

from __future__ import annotations

import pytest

from hierchat.store import Mark, NewTurn, NotFound, Store, TurnFigures


def titles(store: Store, user: int, *query: str, archived: bool = False) -> list[str]:
    return [c.title for c in store.conversations(user, *query, archived=archived)]


@pytest.fixture
def ids(store: Store, user: int) -> dict[str, int]:
    return {title: store.create_conversation(user, title) for title in ("chat A", "chat B", "chat C")}


def test_pinned_ones_come_first(store: Store, user: int, ids: dict[str, int]) -> None:
    store.pin_conversation(user, ids["chat A"], True)
    assert titles(store, user) == ["chat A", "chat C", "chat B"]
    assert [c.pinned for c in store.conversations(user)] == [True, False, False]
    store.pin_conversation(user, ids["chat A"], False)
    assert titles(store, user) == ["chat C", "chat B", "chat A"]


def test_archived_ones_leave_the_list_and_are_found(store: Store, user: int, ids: dict[str, int]) -> None:
    store.pin_conversation(user, ids["chat C"], True)
    store.archive_conversation(user, ids["chat C"], True)
    assert titles(store, user) == ["chat B", "chat A"]
    assert titles(store, user, archived=True) == ["chat C"]
    assert store.archived_conversations(user) == 1
    assert titles(store, user, "chat") == ["chat B", "chat A", "chat C"]  # last, and no longer pinned
    store.archive_conversation(user, ids["chat C"], False)
    assert titles(store, user) == ["chat C", "chat B", "chat A"]
    assert not store.conversation(user, ids["chat C"]).pinned
    assert store.archived_conversations(user) == 0


def test_archived_ones_draft(store: Store, user: int, ids: dict[str, int]) -> None:
    question = store.add_message(user, ids["chat A"], None, "user", "?")
    reply = store.begin_reply(user, ids["chat A"], question, NewTurn("m", "k", {}, 0, True))
    store.append_reply(reply, "text", [1], ["target"])
    store.finish_reply(reply, "text", "complete", TurnFigures())
    store.archive_conversation(user, ids["chat A"], True)
    assert [id for id, _ in store.drafting_texts(user, "k", "written", Mark())[0]] == [reply]


def test_only_ones_own(store: Store, ids: dict[str, int]) -> None:
    bob = store.ensure_user("bob")
    for change in (store.pin_conversation, store.archive_conversation):
        with pytest.raises(NotFound):
            change(bob, ids["chat A"], True)
