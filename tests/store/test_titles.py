"""Titles that a model may write: which chats wait for one, and what it may replace."""

from __future__ import annotations

import pytest

from hierchat.store import NewTurn, Store, TurnFigures
from tests.testing.deleting import delete_for_good

LONG_AGO = 0.0


def chatted(store: Store, user: int, text: str, state: str = "complete") -> int:
    chat = store.create_conversation(user)
    question = store.add_message(user, chat, None, "user", text)
    reply = store.begin_reply(user, chat, question, NewTurn("m", "k", {}, 0, True))
    store.append_reply(reply, "text", [1], ["target"])
    if state != "writing":
        store.finish_reply(reply, "text", state, TurnFigures())  # type: ignore[arg-type]
    return chat


def waiting(store: Store, model: str = "k", since: float = LONG_AGO) -> list[int]:
    return [chat.id for chat in store.untitled(model, since)]


def title(store: Store, user: int, chat: int) -> str:
    return store.conversation(user, chat).title


def test_new_chats_with_a_reply_wait_each_once_for_each_model(store: Store, user: int) -> None:
    one, two = chatted(store, user, "What is a suffix array?"), chatted(store, user, "And a trie?")
    chatted(store, user, "Being answered", "writing")
    store.add_message(user, store.create_conversation(user), None, "user", "Not answered")
    assert waiting(store) == [one, two]
    assert waiting(store, since=store.conversation(user, one).created_at) == [two]
    first, second = store.untitled("k", LONG_AGO)
    assert store.title_by_model(first, "k", "Suffix arrays")
    assert not store.title_by_model(second, "k", None)
    assert [title(store, user, chat) for chat in (one, two)] == ["Suffix arrays", "And a trie?"]
    assert waiting(store) == []
    assert waiting(store, "another") == [two]


def test_no_title_of_the_user_is_replaced(store: Store, user: int) -> None:
    before, meanwhile, gone = (chatted(store, user, text) for text in ("One?", "Two?", "Three?"))
    store.rename_conversation(user, before, "One?")  # the same words, and meant
    assert waiting(store) == [meanwhile, gone]
    found = {chat.id: chat for chat in store.untitled("k", LONG_AGO)}
    store.rename_conversation(user, meanwhile, "Mine")
    assert not store.title_by_model(found[meanwhile], "k", "Its")
    assert title(store, user, meanwhile) == "Mine"
    delete_for_good(store, user, gone)
    assert not store.title_by_model(found[gone], "k", "Its")


def test_a_title_from_before_there_were_such_is_kept(store: Store, user: int) -> None:
    chat = chatted(store, user, "One?")
    with store._write() as db:
        db.execute("UPDATE conversations SET title = 'given', title_given = 0 WHERE id = ?", [chat])
    assert waiting(store) == []


@pytest.mark.parametrize("name", ["ann", "bob"])
def test_each_user_can_switch_it_off(store: Store, user: int, name: str) -> None:
    chats = {"ann": chatted(store, user, "One?")}
    bob = store.ensure_user("bob")
    chats["bob"] = chatted(store, bob, "Two?")
    assert store.model_titles(user)
    assert store.model_titles(bob)
    store.allow_model_titles(store.users()[name], False)
    assert not store.model_titles(store.users()[name])
    assert waiting(store) == [chat for other, chat in chats.items() if other != name]
    store.allow_model_titles(store.users()[name], True)
    assert waiting(store) == list(chats.values())
