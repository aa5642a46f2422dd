"""What drafts are made from: stored orders of suffixes and learned values, under damage and deletion."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hierchat.store import Mark, Store
from hierchat.store.records import NewMessage, TurnFigures
from hierchat.store.replies import TOKEN
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import replied

KEY = "k"


def reply(store: Store, user: int, conversation: int, tokens: Sequence[int]) -> int:
    return replied(store, user, conversation, tokens=tokens)


def test_what_was_learned_before_a_deletion_is_not_kept(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    before = store.users.deletions(user)
    assert store.learned.keep(user, "k", "a", b"early", deletions=before)
    delete_for_good(store, user, conversation)
    assert not store.learned.keep(user, "k", "a", b"late", deletions=before)
    assert store.learned.get(user, "k", "a") is None
    assert store.learned.keep(user, "k", "a", b"new", deletions=store.users.deletions(user))
    store.learned.forget(user)
    assert store.learned.get(user, "k", "a") is None
    assert store.users.deletions(user) == before + 2
    assert not store.learned.keep(999, "k", "a", b"value")  # of nobody
    assert store.users.deletions(999) == -1


def test_texts_come_once_their_tokens_are_known(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    asked = store.messages.add(user, conversation, NewMessage(None, "hello"))
    imported = store.messages.add(user, conversation, NewMessage(asked, "imported", "assistant"))
    own = reply(store, user, conversation, [7, 8])
    unknown = store.history.without_tokens(user, KEY, 0, None, 10)
    assert unknown == [(asked, "hello"), (imported, "imported"), (own - 1, "question")]
    assert store.history.without_tokens(user, KEY, asked, own - 1, 10) == unknown[1:2]
    store.history.keep_tokens(KEY, [(asked, [1]), (imported, [2]), (10**6, [3])])
    assert store.history.without_tokens(user, KEY, 0, None, 10) == unknown[2:]
    written, mark = store.history.texts(user, KEY, "written", Mark())
    assert [(one.id, np.frombuffer(one.tokens, TOKEN).tolist()) for one in written] == [
        (imported, [2]),
        (own, [7, 8]),
    ]
    assert [one.id for one in store.history.texts(user, KEY, "asked", Mark())[0]] == [asked]
    assert store.history.texts(user, KEY, "written", mark)[0] == []
    assert store.history.ids(user, KEY, "written") == {imported, own}
    assert store.history.ids(user, "another", "written") == set()
    assert store.history.texts(store.users.ensure("bob"), KEY, "written", Mark())[0] == []


def test_a_reply_that_is_overtaken_comes_when_it_is_finished(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    slow = replied(store, user, conversation, "s", state="writing")
    reply(store, user, conversation, [2])
    _, mark = store.history.texts(user, KEY, "written", Mark())
    store.replies.finish(slow, "s", "complete", TurnFigures())
    assert slow in [one.id for one in store.history.texts(user, KEY, "written", mark)[0]]


def test_each_user_model_and_kind_has_its_own(store: Store, user: int, path: Path) -> None:
    other = store.users.ensure("bob")
    places = [(user, "k", "a"), (user, "k", "b"), (user, "l", "a"), (other, "k", "a")]
    for number, place in enumerate(places):
        assert store.learned.get(*place) is None
        assert store.learned.keep(*place, b"old")
        assert store.learned.keep(*place, bytes([number]))
    with Store.open(path) as again:
        assert [again.learned.get(*place) for place in places] == [b"\0", b"\1", b"\2", b"\3"]


def test_it_goes_with_any_conversation_and_from_the_bytes(store: Store, user: int, path: Path) -> None:
    """But for what steps cost, which is of a model on a machine."""
    noise = np.random.default_rng(0).bytes(300_000)
    pieces = [noise[at : at + 32] for at in range(0, len(noise) - 32, 997)]
    other = store.users.ensure("bob")
    conversation = store.chats.create(user)
    store.learned.keep(user, "k", "a", noise)
    store.learned.keep(user, "l", "b", b"more")
    store.learned.keep(other, "k", "a", b"his")
    for machine, value in (("here", b"old"), ("here", b"new"), ("there", b"far")):
        store.learned.keep_agreement("k", machine, value)
    assert sum(piece in on_disk(path) for piece in pieces[:20]) > 15
    delete_for_good(store, user, conversation)
    assert store.learned.get(user, "k", "a") is store.learned.get(user, "l", "b") is None
    assert store.learned.get(other, "k", "a") == b"his"
    data = on_disk(path)
    assert [piece for piece in pieces if piece in data] == []
    costs = [store.learned.agreement(*place) for place in (("k", "here"), ("k", "there"), ("l", "here"))]
    assert costs == [b"new", b"far", None]


def test_a_failed_deletion_forgets_nothing(store: Store, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = store.chats.create(user)
    store.learned.keep(user, "k", "a", b"value")

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("hierchat.store.chats.forget_learned", fail)
    with pytest.raises(RuntimeError):
        delete_for_good(store, user, conversation)
    assert [c.id for c in store.chats.find(user)] == [conversation]
    assert (store.learned.get(user, "k", "a"), store.users.deletions(user)) == (b"value", 0)
