"""Replies that the user changed: versions beside the model's, which draft as the user's text."""

from __future__ import annotations

import pytest

from hierchat.store import Mark, NewMessage, NewTurn, NotFound, Store, StoreError, TurnFigures
from tests.testing.deleting import delete_for_good


@pytest.fixture
def reply(store: Store, user: int) -> int:
    chat = store.chats.create(user)
    question = store.messages.add(user, chat, NewMessage(None, "?"))
    reply = store.replies.begin(user, chat, question, NewTurn("tiny", "k", {}, 0, True))
    store.replies.append(reply, "text", [1, 2], ["target", "context"])
    store.replies.finish(reply, "text", "complete", TurnFigures(forwards=1, proposed=1, accepted=1))
    return reply


def drafting(store: Store, user: int, kind: str) -> dict[int, bytes]:
    return dict(store.history.texts(user, "k", kind, Mark())[0])  # type: ignore[arg-type]


def test_it_is_a_version_beside_the_reply(store: Store, user: int, reply: int) -> None:
    edited = store.messages.edit_reply(user, reply, "better text")
    chat = store.messages.get(user, reply).conversation_id
    path = store.messages.path(user, chat)
    assert [message.id for message in path] == [reply - 1, edited]
    assert path[-1].siblings == (reply, edited)
    assert (path[-1].edited, path[-1].model, path[-1].role) == (True, "", "assistant")
    before = store.messages.get(user, reply)
    assert (before.text, before.edited, before.model) == ("text", False, "tiny")
    with pytest.raises(NotFound):
        store.messages.edit_reply(store.users.ensure("bob"), reply, "mine")
    with pytest.raises(StoreError, match="Only a reply"):
        store.messages.edit_reply(user, reply - 1, "no")


def test_it_drafts_as_the_users_text_and_counts_as_nothing(store: Store, user: int, reply: int) -> None:
    figures, days = store.figures.totals(user), store.figures.over_time(user)
    edited = store.messages.edit_reply(user, reply, "better text")
    assert (edited, "better text") in store.history.without_tokens(user, "k", 0, None, 9)
    store.history.keep_tokens("k", [(edited, [7, 8]), (reply - 1, [9])])
    assert set(drafting(store, user, "written")) == {reply}
    assert set(drafting(store, user, "asked")) == {reply - 1, edited}
    assert store.history.ids(user, "k", "asked") == {reply - 1, edited}
    assert store.replies.last(user, "k", 9) == [reply]
    assert store.figures.totals(user) == figures
    assert figures.accepted == 1
    assert store.figures.over_time(user) == days
    assert store.replies.turn(user, edited) is None


def test_its_copy_is_one_too(store: Store, user: int, reply: int) -> None:
    edited = store.messages.edit_reply(user, reply, "better text")
    fork = store.chats.fork(user, edited)
    original = store.messages.get(user, edited).conversation_id
    assert store.messages.path(user, fork)[-1].edited
    delete_for_good(store, user, original)
    copy = store.messages.path(user, fork)[-1].id
    store.history.keep_tokens("k", [(copy, [7])])
    assert copy in drafting(store, user, "asked")
    assert copy not in drafting(store, user, "written")
