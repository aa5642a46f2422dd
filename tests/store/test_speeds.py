"""How fast each model has written."""

from __future__ import annotations

from hierchat.store import NewMessage, NewTurn, Store, TurnFigures
from tests.testing.deleting import delete_for_good


def write(store: Store, user: int, model: str, tokens: int, seconds: float) -> int:
    conversation = store.chats.create(user)
    question = store.messages.add(user, conversation, NewMessage(None, "question"))
    reply = store.replies.begin(user, conversation, question, NewTurn(model, "key", {}, 0, True))
    store.replies.append(reply, "answer", list(range(tokens)), ["target"] * tokens)
    store.replies.finish(reply, "answer", "complete", TurnFigures(seconds=seconds, forwards=tokens))
    return conversation


def test_tokens_a_second_of_the_last_replies_by_model(store: Store, user: int) -> None:
    assert store.figures.speeds(user) == {}
    write(store, user, "old", 1000, 1.0)
    for _ in range(20):
        write(store, user, "old", 40, 4.0)
    write(store, user, "new", 30, 1.0)
    write(store, user, "new", 50, 3.0)
    write(store, user, "short", 4, 0.1)
    assert store.figures.speeds(user) == {"old": (10.0, 20), "new": (20.0, 2)}


def test_replies_of_others_and_deleted_ones_do_not_count(store: Store, user: int) -> None:
    write(store, store.users.ensure("another"), "model", 40, 1.0)
    delete_for_good(store, user, write(store, user, "model", 40, 1.0))
    assert store.figures.speeds(user) == {}
