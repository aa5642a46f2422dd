"""Replies without a page, the thread that runs ahead of its reader, and what is left of those that never began."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.in_progress import InProgress, ReplyInProgress, State
from hierchat.store import Store, StoreError
from hierchat.store.messages import Messages
from hierchat.store.records import Attachment, NewMessage
from tests.testing.following import follow

PATIENCE = 20.0


class Script:
    """States of a reply, one after the other as a test lets them go."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.written = 0
        self.error: Exception | None = None
        self.before: Callable[[], object] = lambda: None
        """Called when its turn has come."""

    def start(self, stop: threading.Event) -> Generator[State, None, None]:
        yield Frame("waiting", ahead=1)
        while True:
            assert self.steps.acquire(timeout=PATIENCE)
            if self.error:
                raise self.error
            if stop.is_set():
                return
            if not self.written:
                self.before()
            self.written += 1
            yield Frame("writing", "x" * self.written)


class Begun:
    """A reply of Ann's that a script writes."""

    def __init__(self, store: Store) -> None:
        self.store, self.script, self.changes = store, Script(), store.changes
        self.replies = InProgress(store)
        self.user = store.users.ensure("ann")
        self.chat = store.chats.create(self.user)
        self.reply = ReplyInProgress(self.user, self.chat, "Question")

    def begin(self) -> Begun:
        assert self.replies.begin(self.reply, self.script.start)
        return self

    def add(self, text: str, script: Script | None = None) -> ReplyInProgress:
        """Have another message wait for the reply's end."""
        reply = ReplyInProgress(self.user, self.chat, text, [Attachment(f"{text}.txt", 1, "x")])
        assert not self.replies.begin(reply, (script or self.script).start, waits=True)
        return reply

    def write(self, reply: ReplyInProgress | None = None, script: Script | None = None) -> None:
        """Let it write its first word."""
        (script or self.script).steps.release()
        states = follow(reply or self.reply)
        while not take(states):
            pass

    def end(self, reply: ReplyInProgress | None = None, script: Script | None = None) -> None:
        (reply or self.reply).stop.set()
        (script or self.script).steps.release()
        assert (reply or self.reply).ended.wait(PATIENCE)

    def texts(self, store: Store | None = None) -> list[str]:
        return [message.text for message in (store or self.store).messages.path(self.user, self.chat)]

    def held(self) -> list[str]:
        with self.store.connection.read() as db:
            return [text for (text,) in db.execute("SELECT text FROM waiting ORDER BY id")]


@pytest.fixture
def one(store: Store) -> Begun:
    return Begun(store)


def take(states: Iterator[State]) -> str:
    state = next(states)
    assert isinstance(state, Frame)
    return state.text


def test_one_reply_in_a_conversation_and_each_user_his_own(one: Begun) -> None:
    """And it is told when it begins, gets its turn and ends."""
    one.reply.on_screen = lambda: True  # else its chat is marked, which is told, too
    states = follow(one.begin().reply)
    take(states)
    assert one.changes.count(one.user) == 1
    another = ReplyInProgress(one.user, one.chat, "Another")
    assert not one.replies.begin(another, one.script.start)
    assert one.replies.of(one.user, one.chat) is one.reply
    assert one.replies.of(one.user + 1, one.chat) is None
    assert one.replies.all_of(one.user + 1) == []
    one.script.steps.release()
    take(states)
    one.end()
    assert one.replies.all_of(one.user) == []
    assert one.changes.count(one.user) == one.changes.changed(one.user, one.chat) == 3
    assert one.changes.count(one.user + 1) == one.changes.changed(one.user, one.chat + 1) == 0


@pytest.mark.parametrize("open_", [True, False])
def test_a_reply_that_came_while_its_chat_was_not_open_is_marked(one: Begun, open_: bool) -> None:
    one.reply.on_screen = lambda: open_
    one.begin().write()
    one.end()
    assert one.store.chats.get(one.user, one.chat).unread is not open_
    assert [chat.unread for chat in one.store.chats.find(one.user)] == [not open_]


def test_what_waits_goes_out_when_the_reply_has_ended(one: Begun) -> None:
    script = Script()
    second = one.begin().add("Second", script)
    assert one.replies.waiting(one.user) == [second]
    assert one.replies.waiting(one.user + 1) == []
    one.write()
    last = one.store.messages.add(one.user, one.chat, NewMessage(None, "Question"))
    one.end()
    assert one.replies.waiting(one.user) == []
    assert one.replies.of(one.user, one.chat) is second
    assert second.below == last
    assert second.waited
    one.write(second, script)
    one.end(second, script)
    assert one.replies.all_of(one.user) == []


def test_what_waits_for_a_reply_that_failed_stays_in_the_chat_behind_it(one: Begun) -> None:
    one.begin()
    for text in ("Second", "Third"):
        one.add(text)
    one.script.error = RuntimeError("no luck")
    one.script.steps.release()
    assert one.reply.ended.wait(PATIENCE)
    assert one.reply.trouble
    assert one.replies.waiting(one.user) == one.replies.all_of(one.user) == []
    (message,) = one.store.messages.path(one.user, one.chat)
    assert message.text == "Question\n\nSecond\n\nThird"
    files = one.store.messages.attachments(one.user, message.id)
    assert [file.name for file in files] == ["Second.txt", "Third.txt"]


def test_what_is_stopped_before_its_turn_stays_in_its_chat_once(one: Begun) -> None:
    one.begin()
    one.add("Second")
    one.end()
    assert one.held() == []
    one.store.close()
    with Store.open(one.store.path) as again:
        assert one.texts(again) == ["Question\n\nSecond"]


def test_what_waits_in_a_conversation_that_ends_is_dropped(one: Begun) -> None:
    second = one.begin().add("Second")
    one.replies.end(one.user, one.chat + 1)
    assert one.replies.waiting(one.user) == [second]
    one.script.steps.release(2)
    one.replies.end(one.user, one.chat)
    assert one.reply.ended.is_set()
    assert one.replies.all_of(one.user) == one.replies.waiting(one.user) == []


def test_a_question_is_stored_from_when_it_is_sent_until_its_turn_or_taken_out_by_its_user(
    one: Begun,
) -> None:
    question = NewMessage(None, "Question")
    one.script.before = lambda: one.store.messages.add(one.user, one.chat, question, [one.reply.held or 0])
    one.begin()
    assert one.held() == ["Question"]
    second, third = one.add("Second"), one.add("Third")
    refused = ReplyInProgress(one.user, one.chat, "Refused")
    assert not one.replies.begin(refused, one.script.start)
    assert one.held() == ["Question", "Second", "Third"]
    one.write()
    assert one.held() == ["Second", "Third"]
    assert one.replies.take_out(one.user + 1, third.number) is None
    assert one.replies.take_out(one.user, third.number) is third
    assert one.replies.take_out(one.user, third.number) is None
    assert one.held() == ["Second"]
    for reply in (second, one.reply):
        reply.stop.set()
    one.end()
    assert one.held() == []
    assert one.texts() == ["Question", "Second"]


def test_a_question_that_cannot_be_stored_is_not_begun(one: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*place: object, **more: object) -> int:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(Messages, "enqueue", full)
    with pytest.raises(StoreError):
        one.begin()
    assert one.replies.all_of(one.user) == []
    assert one.script.written == 0
