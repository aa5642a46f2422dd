"""Going on in a new conversation: what is copied, and what counts."""

from __future__ import annotations

import pytest

from hierchat.store import Mark, NewMessage, NewTurn, NotFound, SourceCount, Store, TurnFigures
from tests.testing.deleting import delete_for_good

FIGURES = TurnFigures(prompt_tokens=4, seconds=2.0, forwards=2, proposed=3, accepted=1, finish="end",
                      sources={"history": SourceCount(3, 1)})  # fmt: skip


def answered(store: Store, user: int, conversation: int, parent: int | None, text: str) -> int:
    question = store.messages.add(user, conversation, NewMessage(parent, f"{text}?"))
    reply = store.replies.begin(user, conversation, question, NewTurn("Big model", "k", {"seed": 3}, 3, True))
    store.replies.append(reply, text, [1, 2, 3], ["target", "history", "history"])
    store.replies.finish(reply, text, "complete", FIGURES)
    return reply


def drafting(store: Store, user: int) -> list[int]:
    return [id for id, _ in store.history.texts(user, "k", "written", Mark())[0]]


def test_the_path_is_copied_with_all_that_is_known_of_its_replies(store: Store, user: int) -> None:
    conversation = store.chats.create(user, "Tides")
    first = answered(store, user, conversation, None, "one")
    second = answered(store, user, conversation, first, "two")
    answered(store, user, conversation, first, "another branch")
    answered(store, user, conversation, second, "three")
    fork = store.chats.fork(user, second)
    path, copied = store.messages.path(user, conversation, second), store.messages.path(user, fork)
    assert [(m.role, m.text, m.state) for m in copied] == [(m.role, m.text, m.state) for m in path]
    assert [m.parent_id for m in copied] == [None, *(m.id for m in copied[:-1])]
    for original, copy in zip(path[1::2], copied[1::2], strict=True):
        turn, known = store.replies.turn(user, original.id), store.replies.turn(user, copy.id)
        assert turn
        assert known
        assert (known.begun, known.figures) == (turn.begun, turn.figures)
        assert store.replies.tokens(user, copy.id) == store.replies.tokens(user, original.id)
        assert store.replies.spans(user, copy.id) == store.replies.spans(user, original.id)
    assert store.chats.get(user, fork).title == "Tides (2)"
    assert store.chats.get(user, store.chats.fork(user, copied[-1].id)).title == "Tides (3)"
    assert store.chats.find(user)[1].id == fork
    assert len(store.messages.path(user, conversation)) == 6  # the old one is as it was
    with pytest.raises(NotFound):
        store.chats.fork(store.users.ensure("bob"), second)


def test_a_copy_counts_only_once_its_original_is_gone(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    original = answered(store, user, conversation, None, "one")
    forks = [store.chats.fork(user, original)]
    forks.append(store.chats.fork(user, store.messages.path(user, forks[0])[-1].id))  # a copy of a copy
    copies = [store.messages.path(user, fork)[-1].id for fork in forks]
    assert drafting(store, user) == [original]
    assert store.figures.totals(user).replies == len(store.replies.last(user, "k", 9)) == 1
    assert store.history.without_tokens(user, "k", 0, None, 9) == [(original - 1, "one?")]
    store.chats.hide(user, conversation)
    assert drafting(store, user) == copies[:1]  # not one less, not one more
    store.chats.delete_hidden()
    assert drafting(store, user) == copies[:1]
    delete_for_good(store, user, forks[0])
    assert drafting(store, user) == copies[1:]
    assert store.replies.tokens(user, copies[1]) == [1, 2, 3]


def test_a_copy_that_is_continued_is_one_no_more(store: Store, user: int) -> None:
    original = answered(store, user, store.chats.create(user), None, "one")
    copy = store.messages.path(user, store.chats.fork(user, original))[-1].id
    store.replies.resume(user, copy)
    store.replies.append(copy, "one more", [9], ["target"])
    store.replies.finish(copy, "one more", "complete", FIGURES)
    assert drafting(store, user) == [original, copy]


def test_a_reply_that_is_being_written_is_copied_as_far_as_it_is(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    question = store.messages.add(user, conversation, NewMessage(None, "?"))
    reply = store.replies.begin(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, "so far", [1], ["target"])
    copy = store.messages.path(user, store.chats.fork(user, reply))[-1]
    assert (copy.text, copy.state) == ("so far", "interrupted")
