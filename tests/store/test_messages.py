"""The tree of messages, against a dictionary of parents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.store import NewMessage, NewTurn, NotFound, Store
from hierchat.store.connection import title_of
from tests.testing.deleting import delete_for_good

TURN = NewTurn(model="tiny", model_key="k", settings={}, seed=0, drafted=True)


def test_an_edit_and_a_regeneration_are_siblings(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    question = store.messages.add(user, conversation, NewMessage(None, "one?"))
    first = store.messages.add(user, conversation, NewMessage(question, "1", "assistant"))
    second = store.replies.begin(user, conversation, question, TURN)
    assert [m.id for m in store.messages.path(user, conversation)] == [question, second]
    assert store.messages.get(user, first).siblings == (first, second)
    edited = store.messages.add(user, conversation, NewMessage(None, "two?"))
    assert [m.text for m in store.messages.path(user, conversation)] == ["two?"]
    assert store.messages.path(user, conversation)[0].siblings == (question, edited)
    assert store.messages.select_branch(user, question) == second
    assert store.messages.select_branch(user, first) == first
    assert [m.text for m in store.messages.path(user, conversation)] == ["one?", "1"]
    assert [m.id for m in store.messages.path(user, conversation, edited)] == [edited]


@settings(max_examples=40, deadline=None)
@given(parents=st.lists(st.integers(min_value=-1), max_size=25), chosen=st.integers(min_value=0))
def test_any_tree(shared: Store, parents: list[int], chosen: int) -> None:
    user = shared.users.ensure("tree")
    conversation = shared.chats.create(user)
    tree: dict[int, int | None] = {}
    for number in parents:
        parent = list(tree)[number % len(tree)] if tree and number >= 0 else None
        tree[shared.messages.add(user, conversation, NewMessage(parent, str(number)))] = parent
    shown = shared.messages.path(user, conversation)
    assert [m.id for m in shown] == (path_to(tree, max(tree)) if tree else [])
    for message in shown:
        assert message.siblings == tuple(id for id in tree if tree[id] == message.parent_id)
    for id in tree:
        assert [m.id for m in shared.messages.path(user, conversation, id)] == path_to(tree, id)
    if tree:
        node = list(tree)[chosen % len(tree)]
        leaf = shared.messages.select_branch(user, node)
        assert leaf == max(id for id in tree if node in path_to(tree, id))
        assert leaf not in tree.values()
        assert [m.id for m in shared.messages.path(user, conversation)] == path_to(tree, leaf)


def path_to(tree: dict[int, int | None], node: int | None) -> list[int]:
    return [] if node is None else [*path_to(tree, tree[node]), node]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=())))
def test_text_comes_back_as_it_went_in(shared: Store, text: str) -> None:
    user = shared.users.ensure("text")
    message = shared.messages.add(user, shared.chats.create(user, text), NewMessage(None, text))
    stored = shared.messages.get(user, message).text
    assert stored == "".join("?" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_the_first_user_message_gives_the_title(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    system = store.messages.add(user, conversation, NewMessage(None, "Be brief.", "system"))
    store.messages.add(user, conversation, NewMessage(system, "  How do\n tides work? "))
    store.messages.add(user, conversation, NewMessage(system, "another"))
    assert store.chats.find(user)[0].title == "How do tides work?"
    store.chats.rename(user, conversation, "Tides")
    assert store.chats.find(user)[0].title == "Tides"
    assert title_of("word " * 40) == "word " * 11 + "word…"
    assert title_of("x" * 90) == "x" * 60 + "…"


def test_the_latest_changed_comes_first(store: Store, user: int) -> None:
    one, two = store.chats.create(user, "one"), store.chats.create(user, "two")
    assert [c.id for c in store.chats.find(user)] == [two, one]
    store.messages.add(user, one, NewMessage(None, "hello"))
    assert [c.id for c in store.chats.find(user)] == [one, two]
    assert [c.id for c in store.chats.find(user, limit=1)] == [one]


def test_one_conversation_is_its_owners_alone(store: Store, user: int) -> None:
    one = store.chats.create(user, "one")
    assert store.chats.get(user, one) == store.chats.find(user)[0]
    with pytest.raises(NotFound):
        store.chats.get(store.users.ensure("somebody else"), one)
    with pytest.raises(NotFound):
        store.chats.get(user, one + 1)


def test_a_parent_or_leaf_of_another_conversation_is_refused(store: Store, user: int) -> None:
    one, two = store.chats.create(user), store.chats.create(user)
    message = store.messages.add(user, one, NewMessage(None, "hello"))
    with pytest.raises(NotFound):
        store.messages.add(user, two, NewMessage(message, "hello"))
    with pytest.raises(NotFound):
        store.messages.path(user, two, message)
    assert store.messages.path(user, two) == []


def test_a_conversation_deeper_than_any_limit_can_be_deleted(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    parent = None
    with store.connection.write() as db:
        for _ in range(1500):
            parent = store.messages.insert(db, user, conversation, parent, "user", "on", "complete")
    assert len(store.messages.path(user, conversation)) == 1500
    delete_for_good(store, user, conversation)
    assert store.chats.find(user) == []
