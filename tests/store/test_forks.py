"""Going on in a new conversation: what is copied, and what counts."""

from __future__ import annotations

import pytest

from hierchat.store import Mark, NewTurn, NotFound, SourceCount, Store, TurnFigures
from tests.testing.deleting import delete_for_good

FIGURES = TurnFigures(prompt_tokens=4, seconds=2.0, forwards=2, proposed=3, accepted=1, finish="end",
                      sources={"history": SourceCount(3, 1)})  # fmt: skip


def answered(store: Store, user: int, conversation: int, parent: int | None, text: str) -> int:
    question = store.add_message(user, conversation, parent, "user", f"{text}?")
    reply = store.begin_reply(user, conversation, question, NewTurn("Big model", "k", {"seed": 3}, 3, True))
    store.append_reply(reply, text, [1, 2, 3], ["target", "history", "history"])
    store.finish_reply(reply, text, "complete", FIGURES)
    return reply


def drafting(store: Store, user: int) -> list[int]:
    return [id for id, _ in store.drafting_texts(user, "k", "written", Mark())[0]]


def test_the_path_is_copied_with_all_that_is_known_of_its_replies(store: Store, user: int) -> None:
    conversation = store.create_conversation(user, "Tides")
    first = answered(store, user, conversation, None, "one")
    second = answered(store, user, conversation, first, "two")
    answered(store, user, conversation, first, "another branch")
    answered(store, user, conversation, second, "three")
    fork = store.fork_conversation(user, second)
    path, copied = store.messages(user, conversation, second), store.messages(user, fork)
    assert [(m.role, m.text, m.state) for m in copied] == [(m.role, m.text, m.state) for m in path]
    assert [m.parent_id for m in copied] == [None, *(m.id for m in copied[:-1])]
    for original, copy in zip(path[1::2], copied[1::2], strict=True):
        turn, known = store.turn(user, original.id), store.turn(user, copy.id)
        assert turn
        assert known
        assert (known.begun, known.figures) == (turn.begun, turn.figures)
        assert store.reply_tokens(user, copy.id) == store.reply_tokens(user, original.id)
        assert store.spans(user, copy.id) == store.spans(user, original.id)
    assert store.conversation(user, fork).title == "Tides (2)"
    assert store.conversation(user, store.fork_conversation(user, copied[-1].id)).title == "Tides (3)"
    assert store.conversations(user)[1].id == fork
    assert len(store.messages(user, conversation)) == 6  # the old one is as it was
    with pytest.raises(NotFound):
        store.fork_conversation(store.ensure_user("bob"), second)


def test_a_copy_counts_only_once_its_original_is_gone(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    original = answered(store, user, conversation, None, "one")
    forks = [store.fork_conversation(user, original)]
    forks.append(store.fork_conversation(user, store.messages(user, forks[0])[-1].id))  # a copy of a copy
    copies = [store.messages(user, fork)[-1].id for fork in forks]
    assert drafting(store, user) == [original]
    assert store.totals(user).replies == len(list(store.token_log(user, "k"))) == 1
    assert store.texts_without_tokens(user, "k", 0, None, 9) == [(original - 1, "one?")]
    store.hide_conversation(user, conversation)
    assert drafting(store, user) == copies[:1]  # not one less, not one more
    store.delete_hidden()
    assert drafting(store, user) == copies[:1]
    delete_for_good(store, user, forks[0])
    assert drafting(store, user) == copies[1:]
    assert store.reply_tokens(user, copies[1]) == [1, 2, 3]


def test_a_copy_that_is_continued_is_one_no_more(store: Store, user: int) -> None:
    original = answered(store, user, store.create_conversation(user), None, "one")
    copy = store.messages(user, store.fork_conversation(user, original))[-1].id
    store.resume_reply(user, copy)
    store.append_reply(copy, "one more", [9], ["target"])
    store.finish_reply(copy, "one more", "complete", FIGURES)
    assert drafting(store, user) == [original, copy]


def test_a_reply_that_is_being_written_is_copied_as_far_as_it_is(store: Store, user: int) -> None:
    conversation = store.create_conversation(user)
    question = store.add_message(user, conversation, None, "user", "?")
    reply = store.begin_reply(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    store.append_reply(reply, "so far", [1], ["target"])
    copy = store.messages(user, store.fork_conversation(user, reply))[-1]
    assert (copy.text, copy.state) == ("so far", "interrupted")
