"""One user's history never reaches another."""

from __future__ import annotations

import pytest

from hierchat.store import NewTurn, NotFound, Store, TurnFigures
from tests.testing.deleting import delete_for_good


def test_users_do_not_see_each_other(store: Store, user: int) -> None:
    bob = store.ensure_user("bob")
    assert (store.ensure_user("ann"), bob != user) == (user, True)
    conversation = store.create_conversation(user, "private")
    message = store.add_message(user, conversation, None, "user", "secret")
    reply = store.begin_reply(user, conversation, message, NewTurn("m", "k", {}, 0, True))
    store.append_reply(reply, "answer", [1], ["target"])
    store.finish_reply(reply, "answer", "complete", TurnFigures())
    for peek in (
        lambda: store.messages(bob, conversation),
        lambda: store.message(bob, message),
        lambda: store.select_branch(bob, message),
        lambda: store.rename_conversation(bob, conversation, "mine"),
        lambda: delete_for_good(store, bob, conversation),
        lambda: store.add_message(bob, conversation, message, "user", "hi"),
        lambda: store.add_message(bob, store.create_conversation(bob), message, "user", "hi"),
        lambda: store.begin_reply(bob, conversation, message, NewTurn("m", "k", {}, 0, True)),
        lambda: store.turn(bob, reply),
        lambda: store.spans(bob, reply),
        lambda: store.reply_tokens(bob, reply),
    ):
        with pytest.raises(NotFound):
            peek()
    assert list(store.token_log(bob, "k")) == []
    assert store.totals(bob).replies == 0
    assert [m.text for m in store.messages(user, conversation)] == ["secret", "answer"]
