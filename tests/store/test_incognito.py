"""Conversations that leave nothing, and the choice of what may draft."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hierchat.store import Mark, NewMessage, NewTurn, NotFound, Store, StoreError, TurnFigures

WORD = "quincunx"


def talk(store: Store, user: int) -> tuple[int, int, int]:
    """An incognito conversation with one reply: its id, and those of question and reply."""
    conversation = store.chats.begin_incognito(user)
    question = store.messages.add(user, conversation, NewMessage(None, f"What is a {WORD}?"))
    reply = store.replies.begin(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, f"A {WORD} it is", [1, 2, 3], ["target"] * 3)
    store.replies.finish(reply, f"A {WORD} it is", "complete", TurnFigures(forwards=3))
    store.history.keep_tokens("k", [(question, [7, 8])])
    return conversation, question, reply


def on_disk(path: Path, word: str) -> bool:
    return any(word.encode() in file.read_bytes() for file in path.parent.glob(path.name + "*"))


def test_it_can_be_talked_in_and_stands_nowhere(store: Store, user: int) -> None:
    conversation, question, reply = talk(store, user)
    assert [m.id for m in store.messages.path(user, conversation)] == [question, reply]
    assert store.users.drafts_from(user, conversation) == "chat"
    assert store.chats.find(user) == []
    assert store.chats.find(user, WORD) == []
    assert store.history.ids(user, "k", "written") == set()
    assert store.history.texts(user, "k", "asked", Mark())[0] == []
    assert store.history.without_tokens(user, "another", 0, None, 9) == []
    assert store.figures.totals(user).replies == 0
    assert store.figures.over_time(user).days == {}
    assert store.replies.last(user, "k", 9) == []
    with pytest.raises(NotFound):
        store.messages.path(store.users.ensure("bob"), conversation)


def test_it_goes_to_the_byte(store: Store, user: int, path: Path) -> None:
    kept = store.chats.create(user, "kept")
    conversation, *_ = talk(store, user)
    assert on_disk(path, WORD)  # or the test below could not fail
    store.chats.end_incognito(store.users.ensure("bob"), conversation)
    assert store.messages.path(user, conversation)  # another user ends nothing
    store.chats.end_incognito(user, kept)
    store.chats.end_incognito(user, conversation)
    store.chats.end_incognito(user, conversation)
    with pytest.raises(NotFound):
        store.chats.get(user, conversation)
    assert store.chats.get(user, kept).title == "kept"
    assert not on_disk(path, WORD)


def test_closing_ends_it(path: Path) -> None:
    with Store.open(path) as store:
        talk(store, store.users.ensure("ann"))
    assert not on_disk(path, WORD)


def test_what_a_killed_process_left_goes_at_the_next_start(path: Path) -> None:
    if not (child := os.fork()):
        store = Store.open(path)
        talk(store, store.users.ensure("ann"))
        os._exit(9)
    os.waitpid(child, 0)
    assert on_disk(path, WORD)
    with Store.open(path) as store:
        assert not on_disk(path, WORD)
        assert store.users.ids() == {"ann": 1}


def test_it_can_be_kept_after_all(store: Store, user: int) -> None:
    conversation, _, reply = talk(store, user)
    store.chats.restore(user, conversation)
    assert store.users.drafts_from(user, conversation) == "all"
    assert [c.id for c in store.chats.find(user, WORD)] == [conversation]
    assert reply in store.history.ids(user, "k", "written")
    store.chats.end_incognito(user, conversation)
    assert store.chats.get(user, conversation)


def test_what_may_draft_is_chosen_for_each_user(store: Store, user: int) -> None:
    chat, secret, bob = store.chats.create(user), store.chats.begin_incognito(user), store.users.ensure("bob")
    assert [store.users.drafts_from(user), store.users.drafts_from(user, chat)] == ["all", "all"]
    assert store.users.drafts_from(user, secret) == "chat"
    store.users.set_drafts_from(user, "none")
    assert store.users.drafts_from(user, secret) == "none"
    assert store.users.drafts_from(bob) == "all"
    store.users.set_drafts_from(user, "chat")
    assert store.users.drafts_from(user, chat) == "chat"


def test_a_forgotten_user_begins_none(store: Store, user: int) -> None:
    store.users.forget(user)
    with pytest.raises(StoreError, match="Reload"):
        store.chats.begin_incognito(user)
