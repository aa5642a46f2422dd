"""Full-text search, whatever the user types."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hierchat.store import FOUND_BEGINS, FOUND_ENDS, NewMessage, NewTurn, Store, TurnFigures
from tests.testing.deleting import delete_for_good


def found(store: Store, user: int, query: str) -> list[str]:
    return [conversation.title for conversation in store.chats.find(user, query)]


@pytest.fixture
def library(store: Store, user: int) -> Store:
    for title, text in [
        ("Tides", "Why does the moon pull the sea?"),
        ("Bread", "I don't know why my sourdough won't rise AND it's flat: C++ style"),
        ("Café", "crème brûlée"),
    ]:
        store.messages.add(user, store.chats.create(user, title), NewMessage(None, text))
    return store


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("moon", ["Tides"]),
        ("sea MOON", ["Tides"]),
        ("mo", ["Tides"]),
        ("mo sea", []),
        ("tid", ["Tides"]),
        ("why", ["Bread", "Tides"]),
        ("moon sourdough", []),
        ("don't", ["Bread"]),
        ('"why my" sour', ["Bread"]),
        ("why AND rise", ["Bread"]),
        ("c++ style", ["Bread"]),
        ("moon* -sea", ["Tides"]),
        ("moon ???", ["Tides"]),
        ("cafe", ["Café"]),
        ("creme brul", ["Café"]),
        ("", ["Café", "Bread", "Tides"]),
        (" \t", ["Café", "Bread", "Tides"]),
        ('"*-()', []),
    ],
)
def test_search(library: Store, user: int, query: str, titles: list[str]) -> None:
    assert found(library, user, query) == titles


def test_a_hit_comes_with_the_text_around_it(library: Store, user: int) -> None:
    conversation = library.chats.create(user, "Long")
    text = "before " * 40 + "needles" + " after" * 40
    message = library.messages.add(user, conversation, NewMessage(None, text))
    (hit,) = library.chats.find(user, "need")
    assert f"{FOUND_BEGINS}needles{FOUND_ENDS}" in hit.snippet
    assert hit.message_id == message
    assert len(hit.snippet) < 120
    assert library.chats.find(user, "tides")[0].snippet == ""
    assert library.chats.find(user, "tides")[0].message_id is None


def test_the_index_follows_every_change(store: Store, user: int) -> None:
    conversation = store.chats.create(user, "before")
    question = store.messages.add(user, conversation, NewMessage(None, "question"))
    reply = store.replies.begin(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, "draft", [], [])
    assert found(store, user, "draft") == []
    store.replies.finish(reply, "final", "complete", TurnFigures())
    assert (found(store, user, "draft"), found(store, user, "final")) == ([], ["before"])
    store.chats.rename(user, conversation, "after")
    assert (found(store, user, "before"), found(store, user, "after")) == ([], ["after"])
    with store.connection.write() as db:  # a second change of a finished message takes the old words out
        db.execute("UPDATE messages SET text = 'other' WHERE id = ?", [reply])
    assert (found(store, user, "final"), found(store, user, "other")) == ([], ["after"])
    delete_for_good(store, user, conversation)
    with store.connection.write() as db:
        for table in ("messages_fts", "titles_fts"):
            db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('integrity-check', 1)")


@settings(max_examples=150, deadline=None)
@given(
    query=st.text(st.characters(exclude_categories=())) | st.text("ab \"'*-+:^(){}[]\0\ud800AND OR NOT NEAR")
)
@example(query='" OR "')
@example(query="a\0b")
@example(query="NEAR(a b, 2)")
@example(query="title : a")
@example(query="a " * 5000)
@example(query="é\u0301 \u0301 ² 中文")
def test_no_query_raises(shared: Store, query: str) -> None:
    user = shared.users.ensure("search")
    if not shared.chats.find(user):
        shared.messages.add(user, shared.chats.create(user), NewMessage(None, "a b AND title 中文字"))
    shared.chats.find(user, query)


def test_search_stays_with_its_user(library: Store) -> None:
    bob = library.users.ensure("bob")
    assert found(library, bob, "moon") == found(library, bob, "tides") == found(library, bob, "") == []
