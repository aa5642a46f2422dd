"""What is deleted but can be taken back: gone from everything that reads, and gone for good when its time is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierchat.store import Mark, NewMessage, NewTurn, NotFound, Store, TurnFigures
from tests.testing.deleting import delete_for_good


def chat(store: Store, user: int, word: str) -> tuple[int, int, int]:
    """A conversation about `word`; its id, and those of its question and its reply."""
    conversation = store.chats.create(user, f"About {word}")
    question = store.messages.add(user, conversation, NewMessage(None, f"What is {word}?"))
    reply = store.replies.begin(user, conversation, question, NewTurn("m", "k", {}, 0, True))
    store.replies.append(reply, f"{word} it is", [1, 2, 3], ["target"] * 3)
    store.replies.finish(reply, f"{word} it is", "complete", TurnFigures(forwards=3))
    store.history.keep_tokens("k", [(question, [7, 8])])
    return conversation, question, reply


def seen(store: Store, user: int, conversation: int, question: int, reply: int) -> list[bool]:
    """Whether it is there, for everything that reads."""

    def there(read: object, *ids: int) -> bool:
        try:
            read(user, *ids)  # type: ignore[operator]
        except NotFound:
            return False
        return True

    return [
        conversation in [c.id for c in store.chats.find(user)],
        conversation in [c.id for c in store.chats.find(user, "hops")],
        there(store.chats.get, conversation),
        there(store.messages.path, conversation),
        there(store.messages.get, reply),
        there(store.replies.turn, reply),
        there(store.replies.spans, reply),
        there(store.messages.select_branch, question),
        there(store.chats.fork, reply),
        reply in store.history.ids(user, "k", "written"),
        reply in [id for id, _ in store.history.texts(user, "k", "written", Mark())[0]],
        question in store.history.ids(user, "k", "asked"),
        question in [id for id, _ in store.history.without_tokens(user, "another", 0, None, 9)],
        reply in store.replies.last(user, "k", 9),
        store.figures.totals(user).replies > 0,
        bool(store.figures.over_time(user).days),
    ]


def test_what_is_hidden_counts_as_missing_everywhere(store: Store, user: int) -> None:
    ids = chat(store, user, "hops")
    store.learned.keep(user, "k", "kind", b"traces")
    before = store.users.deletions(user)
    assert all(seen(store, user, *ids))
    for copy in [c.id for c in store.chats.find(user) if c.id != ids[0]]:
        delete_for_good(store, user, copy)
    store.learned.keep(user, "k", "kind", b"traces")
    store.chats.hide(user, ids[0])
    assert not any(seen(store, user, *ids))
    assert store.learned.get(user, "k", "kind") is None
    assert store.users.deletions(user) > before
    with pytest.raises(NotFound):
        store.messages.add(user, ids[0], NewMessage(None, "more"))
    hidden = store.users.deletions(user)
    store.chats.restore(user, ids[0])
    assert all(seen(store, user, *ids))
    assert store.users.deletions(user) > hidden  # whatever holds texts in memory looks again


def test_nobody_else_takes_it_back(store: Store, user: int) -> None:
    conversation, *_ = chat(store, user, "hops")
    store.chats.hide(user, conversation)
    with pytest.raises(NotFound):
        store.chats.restore(store.users.ensure("bob"), conversation)
    with pytest.raises(NotFound):
        store.chats.hide(store.users.ensure("bob"), chat(store, user, "malt")[0])


def test_it_goes_for_good_and_what_was_restored_stays(store: Store, user: int, path: Path) -> None:
    gone, *_ = chat(store, user, "hops")
    kept, *_ = chat(store, user, "malt")
    for conversation in (gone, kept):
        store.chats.hide(user, conversation)
    store.chats.restore(user, kept)
    store.chats.delete_hidden([gone, kept])
    assert [c.id for c in store.chats.find(user)] == [kept]
    with pytest.raises(NotFound):
        store.chats.restore(user, gone)
    data = path.read_bytes() + path.with_name(path.name + "-wal").read_bytes()
    assert b"hops" not in data
    assert b"malt" in data


def rows(path: Path) -> int:
    with Store.open(path) as store, store.connection.read() as db:
        return db.table("conversations").count


def test_closing_deletes_it(path: Path) -> None:
    with Store.open(path) as store:
        user = store.users.ensure("ann")
        store.chats.hide(user, chat(store, user, "hops")[0])
    assert rows(path) == 0


def test_the_next_start_deletes_what_a_process_left_that_died(store: Store, user: int, path: Path) -> None:
    mine, theirs = chat(store, user, "hops")[0], chat(store, user, "malt")[0]
    for conversation in (mine, theirs):
        store.chats.hide(user, conversation)
    with store.connection.write() as db:  # no process began at that time
        db.execute("UPDATE conversations SET hider_started = 5 WHERE id = ?", [theirs])
    assert rows(path) == 1
    store.chats.restore(user, mine)  # another process that starts leaves alone what can be undone here
    with pytest.raises(NotFound):
        store.chats.restore(user, theirs)
