"""Questions that wait for the model: stored from when they are sent, and messages once they were asked or given up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hierchat.store import Attachment, NewMessage, NotFound, Store

WAITS = """
import sys
from pathlib import Path
from hierchat.store import Attachment, NewMessage, NewTurn, Store
store = Store.open(Path(sys.argv[1]))
user = store.users.ensure("ann")
fresh = store.chats.create(user)
first = NewMessage(None, "A first question", files=[Attachment("a.txt", 1, "text of a")])
store.messages.enqueue(user, fresh, first, at_end=False)

busy = store.chats.create(user)
asked = store.messages.add(user, busy, NewMessage(None, "asked"))
reply = store.replies.begin(user, busy, asked, NewTurn("tiny", "k", {}, 0, True))
for text, name in (("Second", "b"), ("Third", "c")):
    files = [Attachment(f"{name}.txt", 1, f"text of {name}")]
    store.messages.enqueue(user, busy, NewMessage(asked, text, files=files), at_end=True)
store.replies.append(reply, "so far", [1], ["target"])

edited = store.chats.create(user)
root = store.messages.add(user, edited, NewMessage(None, "before"))
store.messages.enqueue(user, edited, NewMessage(None, "edited"), at_end=False)

hidden = store.chats.create(user)
store.messages.enqueue(user, hidden, NewMessage(None, "a hidden pangolin"), at_end=False)
store.chats.hide(user, hidden)
secret = store.chats.begin_incognito(user)
assert store.messages.enqueue(user, secret, NewMessage(None, "a secret pangolin"), at_end=False) is None
print(fresh, busy, edited, flush=True)
sys.stdin.read()
"""


def files(path: Path) -> bytes:
    """All bytes of the database and of what stands beside it."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(path.name + "*")))


def test_after_a_kill_they_stand_in_their_chats_without_a_reply(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    fresh, busy, edited = map(int, process.stdout.readline().split())
    with Store.open(path) as beside:  # it still runs: they are its own
        user = beside.users.ensure("ann")
        assert beside.messages.path(user, fresh) == []
        assert [c.id for c in beside.chats.find(user)] == [edited, busy, fresh]
    process.kill()
    process.wait()
    for _ in range(2):  # the second start finds nothing more to do
        with Store.open(path) as store:
            (question,) = store.messages.path(user, fresh)
            assert (question.role, question.text, question.state) == ("user", "A first question", "complete")
            assert store.messages.attachments(user, question.id) == [Attachment("a.txt", 1, "text of a")]
            assert store.chats.get(user, fresh).title == "A first question"
            assert [c.id for c in store.chats.find(user, "first")] == [fresh]
            _, reply, question = store.messages.path(user, busy)
            assert (reply.text, reply.state) == ("so far", "interrupted")
            assert (question.text, question.parent_id) == ("Second\n\nThird", reply.id)
            assert [file.name for file in store.messages.attachments(user, question.id)] == ["b.txt", "c.txt"]
            (question,) = store.messages.path(user, edited)
            assert (question.text, len(question.siblings)) == ("edited", 2)
            assert len(store.chats.find(user)) == 3
    assert b"pangolin" not in files(path)


def test_closing_makes_messages_of_what_this_store_holds(store: Store, user: int, path: Path) -> None:
    mine, theirs = store.chats.create(user), store.chats.create(user)
    store.messages.enqueue(user, mine, NewMessage(None, "mine"), at_end=True)
    with Store.open(path) as other:
        other.messages.enqueue(user, theirs, NewMessage(None, "theirs"), at_end=True)
    assert store.messages.path(user, mine) == []
    assert [message.text for message in store.messages.path(user, theirs)] == ["theirs"]


def test_it_becomes_a_message_once(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    held = store.messages.enqueue(user, conversation, NewMessage(None, "question"), at_end=True)
    assert held is not None
    store.messages.add(user, conversation, NewMessage(None, "question"), [held])
    with pytest.raises(NotFound):
        store.messages.add(user, conversation, NewMessage(None, "question"), [held])
    store.messages.dequeue(held)
    store.close()
    with Store.open(store.path) as again:
        assert [message.text for message in again.messages.path(user, conversation)] == ["question"]


def test_a_chat_in_which_one_waits_is_not_empty(store: Store, user: int) -> None:
    conversation = store.chats.create(user)
    held = store.messages.enqueue(user, conversation, NewMessage(None, "question"), at_end=True)
    assert held is not None
    assert not store.chats.discard(user, conversation)
    store.messages.dequeue(held)
    assert store.chats.discard(user, conversation)


def test_what_was_taken_back_is_in_no_file(store: Store, user: int, path: Path) -> None:
    conversation = store.chats.create(user)
    file = Attachment("long.txt", 1, "quagga " * 5_000)
    held = store.messages.enqueue(
        user, conversation, NewMessage(None, "about an okapi", files=[file]), at_end=True
    )
    assert held is not None
    assert b"okapi" in files(path)
    store.messages.dequeue(held)
    store.chats.discard(user, conversation)
    assert b"okapi" not in files(path)
    assert b"quagga" not in files(path)


def test_it_goes_with_its_chat(store: Store, user: int, path: Path) -> None:
    conversation = store.chats.create(user)
    held = store.messages.enqueue(user, conversation, NewMessage(None, "about an okapi"), at_end=True)
    store.chats.hide(user, conversation)
    store.chats.delete_hidden()
    assert b"okapi" not in files(path)
    with pytest.raises(NotFound):
        store.messages.add(user, conversation, NewMessage(None, "about an okapi"), [held or 0])
    with pytest.raises(NotFound):
        store.messages.enqueue(user, conversation, NewMessage(None, "more"), at_end=True)


def test_it_is_private(store: Store, user: int, path: Path) -> None:
    store.messages.enqueue(user, store.chats.create(user), NewMessage(None, "question"), at_end=True)
    assert all(os.stat(file).st_mode & 0o077 == 0 for file in path.parent.glob(path.name + "*"))
