"""The tree of messages, against a dictionary of parents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierchat.store import NewTurn, NotFound, Store
from hierchat.store.connection import title_of
from tests.testing.deleting import delete_for_good

TURN = NewTurn(model="tiny", model_key="k", settings={}, seed=0, drafted=True)


def test_an_edit_and_a_regeneration_are_siblings(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    question = store.add_message(user, conversation, None, "user", "one?")
    first = store.add_message(user, conversation, question, "assistant", "1")
    second = store.begin_reply(user, conversation, question, TURN)
    assert [m.id for m in store.messages(user, conversation)] == [question, second]
    assert store.message(user, first).siblings == (first, second)
    edited = store.add_message(user, conversation, None, "user", "two?")
    assert [m.text for m in store.messages(user, conversation)] == ["two?"]
    assert store.messages(user, conversation)[0].siblings == (question, edited)
    assert store.select_branch(user, question) == second
    assert store.select_branch(user, first) == first
    assert [m.text for m in store.messages(user, conversation)] == ["one?", "1"]
    assert [m.id for m in store.messages(user, conversation, edited)] == [edited]


@settings(max_examples=40, deadline=None)
@given(parents=st.lists(st.integers(min_value=-1), max_size=25), chosen=st.integers(min_value=0))
def test_any_tree(shared: Store, parents: list[int], chosen: int) -> None:
    user = shared.ensure_user("tree")
    conversation = shared.create_conversation(user)
    tree: dict[int, int | None] = {}
    for number in parents:
        parent = list(tree)[number % len(tree)] if tree and number >= 0 else None
        tree[shared.add_message(user, conversation, parent, "user", str(number))] = parent
    shown = shared.messages(user, conversation)
    assert [m.id for m in shown] == (path_to(tree, max(tree)) if tree else [])
    for message in shown:
        assert message.siblings == tuple(id for id in tree if tree[id] == message.parent_id)
    for id in tree:
        assert [m.id for m in shared.messages(user, conversation, id)] == path_to(tree, id)
    if tree:
        node = list(tree)[chosen % len(tree)]
        leaf = shared.select_branch(user, node)
        assert leaf == max(id for id in tree if node in path_to(tree, id))
        assert leaf not in tree.values()
        assert [m.id for m in shared.messages(user, conversation)] == path_to(tree, leaf)


def path_to(tree: dict[int, int | None], node: int | None) -> list[int]:
    return [] if node is None else [*path_to(tree, tree[node]), node]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=())))
def test_text_comes_back_as_it_went_in(shared: Store, text: str) -> None:
    user = shared.ensure_user("text")
    message = shared.add_message(user, shared.create_conversation(user, text), None, "user", text)
    stored = shared.message(user, message).text
    assert stored == "".join("?" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_the_first_user_message_gives_the_title(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    system = store.add_message(user, conversation, None, "system", "Be brief.")
    store.add_message(user, conversation, system, "user", "  How do\n tides work? ")
    store.add_message(user, conversation, system, "user", "another")
    assert store.conversations(user)[0].title == "How do tides work?"
    store.rename_conversation(user, conversation, "Tides")
    assert store.conversations(user)[0].title == "Tides"
    assert title_of("word " * 40) == "word " * 11 + "word…"
    assert title_of("x" * 90) == "x" * 60 + "…"


def test_the_latest_changed_comes_first(store: Store, user: int) -> None:
    one, two = store.create_conversation(user, "one"), store.create_conversation(user, "two")
    assert [c.id for c in store.conversations(user)] == [two, one]
    store.add_message(user, one, None, "user", "hello")
    assert [c.id for c in store.conversations(user)] == [one, two]
    assert [c.id for c in store.conversations(user, limit=1)] == [one]


def test_one_conversation_is_its_owners_alone(store: Store, user: int) -> None:
    one = store.create_conversation(user, "one")
    assert store.conversation(user, one) == store.conversations(user)[0]
    with pytest.raises(NotFound):
        store.conversation(store.ensure_user("somebody else"), one)
    with pytest.raises(NotFound):
        store.conversation(user, one + 1)


def test_a_parent_or_leaf_of_another_conversation_is_refused(store: Store, user: int) -> None:
    one, two = store.create_conversation(user), store.create_conversation(user)
    message = store.add_message(user, one, None, "user", "hello")
    with pytest.raises(NotFound):
        store.add_message(user, two, message, "user", "hello")
    with pytest.raises(NotFound):
        store.messages(user, two, message)
    assert store.messages(user, two) == []


def test_a_conversation_deeper_than_any_limit_can_be_deleted(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    parent = None
    with store._write() as db:
        for _ in range(1500):
            parent = store._add(db, user, conversation, parent, "user", "on", "complete")
    assert len(store.messages(user, conversation)) == 1500
    delete_for_good(store, user, conversation)
    assert store.conversations(user) == []
