"""One user's history never reaches another."""

from __future__ import annotations

import pytest

from hierchat.store import NewMessage, NewTurn, NotFound, Store, TurnFigures
from tests.testing.deleting import delete_for_good


def test_users_do_not_see_each_other(store: Store, user: int) -> None:
    bob = store.users.ensure("bob")
    assert (store.users.ensure("ann"), bob != user) == (user, True)
    conversation = store.chats.create(user, "private")
    message = store.messages.add(user, conversation, NewMessage(None, "secret"))
    reply = store.replies.begin(user, conversation, message, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, "answer", [1], ["target"])
    store.replies.finish(reply, "answer", "complete", TurnFigures())
    for peek in (
        lambda: store.messages.path(bob, conversation),
        lambda: store.messages.get(bob, message),
        lambda: store.messages.select_branch(bob, message),
        lambda: store.chats.rename(bob, conversation, "mine"),
        lambda: delete_for_good(store, bob, conversation),
        lambda: store.messages.add(bob, conversation, NewMessage(message, "hi")),
        lambda: store.messages.add(bob, store.chats.create(bob), NewMessage(message, "hi")),
        lambda: store.replies.begin(bob, conversation, message, NewTurn("m", "k", {}, 0, True)),
        lambda: store.replies.turn(bob, reply),
        lambda: store.replies.spans(bob, reply),
        lambda: store.replies.tokens(bob, reply),
    ):
        with pytest.raises(NotFound):
            peek()
    assert store.replies.last(bob, "k", 9) == []
    assert store.figures.totals(bob).replies == 0
    assert [m.text for m in store.messages.path(user, conversation)] == ["secret", "answer"]
