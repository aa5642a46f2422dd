"""What is deleted is gone: from every table, from the index, from the bytes of the files."""

import random
from pathlib import Path

import pytest

from hierchat.store import NotFound, Store
from hierchat.store.records import TurnFigures
from tests.testing.deleting import delete_for_good, on_disk
from tests.testing.stores import replied


def write(store: Store, user: int, conversation: int, words: list[str]) -> None:
    text = " ".join(words)
    reply = replied(store, user, conversation, "", asked=text, tokens=[], state="writing")
    for end in range(0, len(words), 7):
        store.replies.append(reply, " ".join(words[:end]), [end], ["history" if end % 2 else "target"])
    store.replies.finish(reply, text[::-1], "complete", TurnFigures())


def test_nothing_of_it_is_left_in_the_files(store: Store, user: int, path: Path) -> None:
    rng = random.Random(2)
    conversations = {store.chats.create(user): [] for _ in range(12)}
    for _ in range(80):
        conversation = rng.choice(list(conversations))
        words = ["".join(rng.choices("bcdfghjkl", k=14)) for _ in range(rng.choice([1, 3, 10, 100]))]
        write(store, user, conversation, words)
        conversations[conversation] += words
    kept = dict(list(conversations.items())[:4])
    for conversation in conversations.keys() - kept.keys():
        delete_for_good(store, user, conversation)
    data = on_disk(path)
    for conversation, words in conversations.items():
        there = [word for word in words if word.encode() in data or word[::-1].encode() in data]
        assert there == (words if conversation in kept else [])
    for conversation, words in kept.items():
        assert [c.id for c in store.chats.find(user, words[0])] == [conversation]


@pytest.mark.parametrize("hindrance", ["none", "a full disk", "a reader"])
def test_no_row_is_left(store: Store, user: int, path: Path, hindrance: str) -> None:
    conversation = store.chats.create(user, "title")
    write(store, user, conversation, ["word"] * 50)
    with Store.open(path) as other, other.connection.read() as reading:
        if hindrance == "a reader":
            assert reading.execute("SELECT count(*) FROM conversations").fetchone()[0] == 1
        if hindrance == "a full disk":
            full = store.connection._idle[-1]
            full.execute(f"PRAGMA max_page_count = {full.execute('PRAGMA page_count').fetchone()[0]}")
        delete_for_good(store, user, conversation)
    assert store.chats.find(user) == []
    with store.connection.read() as db:
        for table in ("conversations", "messages", "turns", "spans", "token_log"):
            assert db.table(table).count == 0
        assert db.execute("SELECT count(*) FROM messages_fts_docsize").fetchone()[0] == 0
    with pytest.raises(NotFound):
        delete_for_good(store, user, conversation)
    if hindrance == "none":
        assert store.chats.create(user) > conversation  # its id is never used again


def test_forgetting_beside_a_reader_says_that_bytes_may_be_left(store: Store, user: int, path: Path) -> None:
    write(store, user, store.chats.create(user), ["word"] * 50)
    with Store.open(path) as other, other.connection.read() as reading:
        assert reading.execute("SELECT count(*) FROM conversations").fetchone()[0] == 1
        assert not store.users.forget(user)
    assert store.users.ids() == {}
    assert store.connection.rewrite()
