"""Replies that the user changed: versions beside the model's, which draft as the user's text."""

from __future__ import annotations

import pytest

from hierchat.store import Mark, NewTurn, NotFound, Store, StoreError, TurnFigures
from tests.testing.deleting import delete_for_good


@pytest.fixture
def reply(store: Store, user: int) -> int:
    chat = store.create_conversation(user)
    question = store.add_message(user, chat, None, "user", "?")
    reply = store.begin_reply(user, chat, question, NewTurn("tiny", "k", {}, 0, True))
    store.append_reply(reply, "text", [1, 2], ["target", "context"])
    store.finish_reply(reply, "text", "complete", TurnFigures(forwards=1, proposed=1, accepted=1))
    return reply


def drafting(store: Store, user: int, kind: str) -> dict[int, bytes]:
    return dict(store.drafting_texts(user, "k", kind, Mark())[0])  # type: ignore[arg-type]


def test_it_is_a_version_beside_the_reply(store: Store, user: int, reply: int) -> None:
    edited = store.edit_reply(user, reply, "better text")
    chat = store.message(user, reply).conversation_id
    path = store.messages(user, chat)
    assert [message.id for message in path] == [reply - 1, edited]
    assert path[-1].siblings == (reply, edited)
    assert (path[-1].edited, path[-1].model, path[-1].role) == (True, "", "assistant")
    before = store.message(user, reply)
    assert (before.text, before.edited, before.model) == ("text", False, "tiny")
    with pytest.raises(NotFound):
        store.edit_reply(store.ensure_user("bob"), reply, "mine")
    with pytest.raises(StoreError, match="Only a reply"):
        store.edit_reply(user, reply - 1, "no")


def test_it_drafts_as_the_users_text_and_counts_as_nothing(store: Store, user: int, reply: int) -> None:
    figures, days = store.totals(user), store.figures_over_time(user)
    edited = store.edit_reply(user, reply, "better text")
    assert (edited, "better text") in store.texts_without_tokens(user, "k", 0, None, 9)
    store.keep_tokens("k", [(edited, [7, 8]), (reply - 1, [9])])
    assert set(drafting(store, user, "written")) == {reply}
    assert set(drafting(store, user, "asked")) == {reply - 1, edited}
    assert store.drafting_ids(user, "k", "asked") == {reply - 1, edited}
    assert [logged.message_id for logged in store.token_log(user, "k")] == [reply]
    assert store.totals(user) == figures
    assert figures.accepted == 1
    assert store.figures_over_time(user) == days
    assert store.turn(user, edited) is None


def test_its_copy_is_one_too(store: Store, user: int, reply: int) -> None:
    edited = store.edit_reply(user, reply, "better text")
    fork = store.fork_conversation(user, edited)
    original = store.message(user, edited).conversation_id
    assert store.messages(user, fork)[-1].edited
    delete_for_good(store, user, original)
    copy = store.messages(user, fork)[-1].id
    store.keep_tokens("k", [(copy, [7])])
    assert copy in drafting(store, user, "asked")
    assert copy not in drafting(store, user, "written")
