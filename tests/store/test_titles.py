"""Titles that a model may write: which chats wait for one, and what it may replace."""

from __future__ import annotations

import pytest

from hierchat.store import NewMessage, NewTurn, Store, TurnFigures
from tests.testing.deleting import delete_for_good

LONG_AGO = 0.0


def chatted(store: Store, user: int, text: str, state: str = "complete") -> int:
    chat = store.chats.create(user)
    question = store.messages.add(user, chat, NewMessage(None, text))
    reply = store.replies.begin(user, chat, question, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, "text", [1], ["target"])
    if state != "writing":
        store.replies.finish(reply, "text", state, TurnFigures())  # type: ignore[arg-type]
    return chat


def waiting(store: Store, model: str = "k", since: float = LONG_AGO) -> list[int]:
    return [chat.id for chat in store.chats.untitled(model, since)]


def title(store: Store, user: int, chat: int) -> str:
    return store.chats.get(user, chat).title


def test_new_chats_with_a_reply_wait_each_once_for_each_model(store: Store, user: int) -> None:
    one, two = chatted(store, user, "What is a suffix array?"), chatted(store, user, "And a trie?")
    chatted(store, user, "Being answered", "writing")
    store.messages.add(user, store.chats.create(user), NewMessage(None, "Not answered"))
    assert waiting(store) == [one, two]
    assert waiting(store, since=store.chats.get(user, one).created_at) == [two]
    first, second = store.chats.untitled("k", LONG_AGO)
    assert store.chats.title_by_model(first, "k", "Suffix arrays")
    assert not store.chats.title_by_model(second, "k", None)
    assert [title(store, user, chat) for chat in (one, two)] == ["Suffix arrays", "And a trie?"]
    assert waiting(store) == []
    assert waiting(store, "another") == [two]


def test_no_title_of_the_user_is_replaced(store: Store, user: int) -> None:
    before, meanwhile, gone = (chatted(store, user, text) for text in ("One?", "Two?", "Three?"))
    store.chats.rename(user, before, "One?")  # the same words, and meant
    assert waiting(store) == [meanwhile, gone]
    found = {chat.id: chat for chat in store.chats.untitled("k", LONG_AGO)}
    store.chats.rename(user, meanwhile, "Mine")
    assert not store.chats.title_by_model(found[meanwhile], "k", "Its")
    assert title(store, user, meanwhile) == "Mine"
    delete_for_good(store, user, gone)
    assert not store.chats.title_by_model(found[gone], "k", "Its")


def test_a_title_from_before_there_were_such_is_kept(store: Store, user: int) -> None:
    chat = chatted(store, user, "One?")
    with store.connection.write() as db:
        db.execute("UPDATE conversations SET title = 'given', title_given = 0 WHERE id = ?", [chat])
    assert waiting(store) == []


@pytest.mark.parametrize("name", ["ann", "bob"])
def test_each_user_can_switch_it_off(store: Store, user: int, name: str) -> None:
    chats = {"ann": chatted(store, user, "One?")}
    bob = store.users.ensure("bob")
    chats["bob"] = chatted(store, bob, "Two?")
    assert store.users.model_titles(user)
    assert store.users.model_titles(bob)
    store.users.set_model_titles(store.users.ids()[name], False)
    assert not store.users.model_titles(store.users.ids()[name])
    assert waiting(store) == [chat for other, chat in chats.items() if other != name]
    store.users.set_model_titles(store.users.ids()[name], True)
    assert waiting(store) == list(chats.values())
