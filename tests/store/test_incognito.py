"""Conversations that leave nothing, and the choice of what may draft."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hierchat.store import Mark, NewTurn, NotFound, Store, StoreError, TurnFigures

WORD = "quincunx"


def talk(store: Store, user: int) -> tuple[int, int, int]:
    """An incognito conversation with one reply: its id, and those of question and reply."""
    conversation = store.begin_incognito(user)
    question = store.add_message(user, conversation, None, "user", f"What is a {WORD}?")
    reply = store.begin_reply(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    store.append_reply(reply, f"A {WORD} it is", [1, 2, 3], ["target"] * 3)
    store.finish_reply(reply, f"A {WORD} it is", "complete", TurnFigures(forwards=3))
    store.keep_tokens("k", [(question, [7, 8])])
    return conversation, question, reply


def on_disk(path: Path, word: str) -> bool:
    return any(word.encode() in file.read_bytes() for file in path.parent.glob(path.name + "*"))


def test_it_can_be_talked_in_and_stands_nowhere(store: Store, user: int) -> None:
    conversation, question, reply = talk(store, user)
    assert [m.id for m in store.messages(user, conversation)] == [question, reply]
    assert store.drafts_from(user, conversation) == "chat"
    assert store.conversations(user) == []
    assert store.conversations(user, WORD) == []
    assert store.drafting_ids(user, "k", "written") == set()
    assert store.drafting_texts(user, "k", "asked", Mark())[0] == []
    assert store.texts_without_tokens(user, "another", 0, None, 9) == []
    assert store.totals(user).replies == 0
    assert store.figures_over_time(user).days == {}
    assert list(store.token_log(user, "k")) == []
    with pytest.raises(NotFound):
        store.messages(store.ensure_user("bob"), conversation)


def test_it_goes_to_the_byte(store: Store, user: int, path: Path) -> None:
    kept = store.create_conversation(user, "kept")
    conversation, *_ = talk(store, user)
    assert on_disk(path, WORD)  # or the test below could not fail
    store.end_incognito(store.ensure_user("bob"), conversation)
    assert store.messages(user, conversation)  # another user ends nothing
    store.end_incognito(user, kept)
    store.end_incognito(user, conversation)
    store.end_incognito(user, conversation)
    with pytest.raises(NotFound):
        store.conversation(user, conversation)
    assert store.conversation(user, kept).title == "kept"
    assert not on_disk(path, WORD)


def test_closing_ends_it(path: Path) -> None:
    with Store.open(path) as store:
        talk(store, store.ensure_user("ann"))
    assert not on_disk(path, WORD)


def test_what_a_killed_process_left_goes_at_the_next_start(path: Path) -> None:
    if not (child := os.fork()):
        store = Store.open(path)
        talk(store, store.ensure_user("ann"))
        os._exit(9)
    os.waitpid(child, 0)
    assert on_disk(path, WORD)
    with Store.open(path) as store:
        assert not on_disk(path, WORD)
        assert store.users() == {"ann": 1}


def test_it_can_be_kept_after_all(store: Store, user: int) -> None:
    conversation, _, reply = talk(store, user)
    store.restore_conversation(user, conversation)
    assert store.drafts_from(user, conversation) == "all"
    assert [c.id for c in store.conversations(user, WORD)] == [conversation]
    assert reply in store.drafting_ids(user, "k", "written")
    store.end_incognito(user, conversation)
    assert store.conversation(user, conversation)


def test_what_may_draft_is_chosen_for_each_user(store: Store, user: int) -> None:
    chat, secret, bob = store.create_conversation(user), store.begin_incognito(user), store.ensure_user("bob")
    assert [store.drafts_from(user), store.drafts_from(user, chat)] == ["all", "all"]
    assert store.drafts_from(user, secret) == "chat"
    store.set_drafts_from(user, "none")
    assert store.drafts_from(user, secret) == "none"
    assert store.drafts_from(bob) == "all"
    store.set_drafts_from(user, "chat")
    assert store.drafts_from(user, chat) == "chat"


def test_a_forgotten_user_begins_none(store: Store, user: int) -> None:
    store.forget_user(user)
    with pytest.raises(StoreError, match="Reload"):
        store.begin_incognito(user)
