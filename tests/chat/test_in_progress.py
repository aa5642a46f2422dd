"""Replies without a page, the thread that runs ahead of its reader, and what is left of those that never began."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from hierchat.chat.frames import Frame
from hierchat.chat.in_progress import ChangeEvents, InProgress, ReplyInProgress, State, in_reply_thread
from hierchat.chat.service import ChatService
from hierchat.config import GenerationSettings
from hierchat.store import Store, StoreError
from hierchat.store.messages import Messages
from hierchat.store.records import Attachment, NewMessage
from tests.testing.tiny_chat import END, ready_slot

from .conftest import talk_on

PATIENCE = 20.0


USUAL = GenerationSettings(max_new_tokens=400, logit_bias={END: -100.0})


class Script:
    """States of a reply, one after the other as a test lets them go."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.written = 0
        self.error: Exception | None = None

    def start(self, stop: threading.Event) -> Generator[State, None, None]:
        yield Frame("waiting", ahead=1)
        while True:
            assert self.steps.acquire(timeout=PATIENCE)
            if self.error:
                raise self.error
            if stop.is_set():
                return
            self.written += 1
            yield Frame("writing", "x" * self.written)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.steps.release()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def replies(store: Store) -> InProgress:
    return InProgress(store, ChangeEvents())


@pytest.fixture
def asked(store: Store) -> ReplyInProgress:
    user = store.users.ensure("ann")
    return ReplyInProgress(user, store.chats.create(user), "Question")


def end(reply: ReplyInProgress, script: Script) -> None:
    reply.stop.set()
    script.step()
    assert reply.wait(PATIENCE)


def take(states: Iterator[State]) -> str:
    state = next(states)
    assert isinstance(state, Frame)
    return state.text


def test_one_reply_in_a_conversation_and_each_user_his_own(
    replies: InProgress, asked: ReplyInProgress, script: Script
) -> None:
    assert replies.begin(asked, script.start)
    second = ReplyInProgress(asked.user_id, asked.conversation_id, "Another")
    assert not replies.begin(second, script.start)
    assert replies.of(asked.user_id, asked.conversation_id) is asked
    assert replies.of(asked.user_id + 1, asked.conversation_id) is None
    assert replies.all_of(asked.user_id + 1) == []
    end(asked, script)
    assert replies.all_of(asked.user_id) == []


def test_who_is_slow_gets_the_latest_and_who_leaves_changes_nothing(
    replies: InProgress, asked: ReplyInProgress, script: Script
) -> None:
    replies.begin(asked, script.start)
    slow, quick = asked.follow(), asked.follow()
    assert take(slow) == take(quick) == ""
    script.step()
    assert take(quick) == "x"
    quick.close()  # type: ignore[attr-defined]
    script.step(3)
    third = asked.follow()
    while take(third) != "xxxx":
        pass
    assert take(slow) == "xxxx"
    assert not asked.stop.is_set()
    end(asked, script)
    assert list(slow) == []
    assert take(asked.follow()) == "xxxx"  # who comes late sees how it ended


def test_a_question_that_was_not_asked_goes_back_to_its_page(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    given: list[str] = []
    script.error = RuntimeError("no luck")
    replies.begin(asked, script.start, lambda reply: not given.append(reply.text))
    script.step()
    assert asked.wait(PATIENCE)
    assert given == ["Question"]
    assert asked.trouble
    assert asked.withdrawn
    assert store.chats.find(asked.user_id) == []


@pytest.mark.parametrize("open_", [True, False])
def test_a_reply_that_came_while_its_chat_was_not_open_is_marked(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store, open_: bool
) -> None:
    asked.on_screen = lambda: open_
    replies.begin(asked, script.start)
    script.step()
    states = asked.follow()
    while take(states) != "x":
        pass
    end(asked, script)
    conversation = store.chats.get(asked.user_id, asked.conversation_id)
    assert conversation.unread is not open_
    assert [c.unread for c in store.chats.find(asked.user_id)] == [not open_]


def texts(store: Store, asked: ReplyInProgress) -> list[str]:
    return [message.text for message in store.messages.path(asked.user_id, asked.conversation_id)]


def writes(reply: ReplyInProgress, script: Script) -> None:
    script.step()
    states = reply.follow()
    while not take(states):
        pass


def follows(asked: ReplyInProgress, text: str) -> ReplyInProgress:
    return ReplyInProgress(asked.user_id, asked.conversation_id, text, [Attachment(f"{text}.txt", 1, "x")])


def test_what_waits_goes_out_when_the_reply_has_ended(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    replies.begin(asked, script.start)
    next_script, second = Script(), follows(asked, "Second")
    assert not replies.begin(second, next_script.start, waits=True)
    assert replies.waiting(asked.user_id) == [second]
    assert replies.waiting(asked.user_id + 1) == []
    writes(asked, script)
    last = store.messages.add(asked.user_id, asked.conversation_id, NewMessage(None, "Question"))
    end(asked, script)
    assert replies.waiting(asked.user_id) == []
    assert replies.of(asked.user_id, asked.conversation_id) is second
    assert second.below == last
    assert second.waited
    writes(second, next_script)
    end(second, next_script)
    assert replies.all_of(asked.user_id) == []


def test_what_waits_for_a_reply_that_failed_goes_back_or_stays_in_the_chat(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    given: list[str] = []
    replies.begin(asked, script.start, lambda reply: not given.append(reply.text))
    replies.begin(follows(asked, "Second"), script.start, waits=True)
    replies.begin(
        follows(asked, "Third"), script.start, lambda reply: not given.append(reply.text), waits=True
    )
    replies.begin(follows(asked, "Fourth"), script.start, waits=True)
    script.error = RuntimeError("no luck")
    script.step()
    assert asked.wait(PATIENCE)
    assert given == ["Question", "Third"]
    assert replies.waiting(asked.user_id) == replies.all_of(asked.user_id) == []
    (message,) = store.messages.path(asked.user_id, asked.conversation_id)
    assert message.text == "Second\n\nFourth"
    assert [file.name for file in store.messages.attachments(asked.user_id, message.id)] == [
        "Second.txt",
        "Fourth.txt",
    ]


def test_what_waits_can_be_taken_out_by_its_user(
    replies: InProgress, asked: ReplyInProgress, script: Script
) -> None:
    replies.begin(asked, script.start)
    second = follows(asked, "Second")
    replies.begin(second, script.start, waits=True)
    assert replies.take_out(asked.user_id + 1, second.number) is None
    assert replies.take_out(asked.user_id, second.number) is second
    assert replies.take_out(asked.user_id, second.number) is None
    writes(asked, script)
    end(asked, script)
    assert replies.all_of(asked.user_id) == []


def test_all_stopped_nothing_that_waits_goes_out(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    replies.begin(asked, script.start)
    replies.begin(follows(asked, "Second"), script.start, waits=True)
    writes(asked, script)
    replies.stop(asked.user_id)
    end(asked, script)
    assert replies.all_of(asked.user_id) == []
    assert texts(store, asked) == ["Second"]


def test_what_nobody_answered_stays_in_its_chat_once(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    """Where its page is gone."""
    replies.begin(asked, script.start)
    replies.begin(follows(asked, "Second"), script.start, waits=True)
    end(asked, script)
    assert not asked.withdrawn
    assert held(store) == []
    store.close()
    with Store.open(store.path) as again:
        assert texts(again, asked) == ["Question\n\nSecond"]


def test_what_waits_in_a_conversation_that_ends_is_dropped(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    replies.begin(asked, script.start)
    second = follows(asked, "Second")
    replies.begin(second, script.start, waits=True)
    assert replies.end(asked.user_id, asked.conversation_id + 1) == []
    script.step(2)
    assert replies.end(asked.user_id, asked.conversation_id) == [second]
    assert asked.wait(0)
    assert replies.all_of(asked.user_id) == replies.waiting(asked.user_id) == []


def test_news_are_told_when_it_begins_gets_its_turn_and_ends(
    asked: ReplyInProgress, script: Script, store: Store
) -> None:
    changes = ChangeEvents()
    replies = InProgress(store, changes)
    replies.begin(asked, script.start)
    states = asked.follow()
    take(states)
    assert changes.count(asked.user_id) == 1
    script.step()
    take(states)
    end(asked, script)
    assert changes.count(asked.user_id) == changes.changed(asked.user_id, asked.conversation_id) == 3
    assert changes.count(asked.user_id + 1) == 0
    assert changes.changed(asked.user_id, asked.conversation_id + 1) == 0


def test_a_real_reply_comes_to_its_end_without_a_page(store: Store) -> None:
    talk = talk_on(store, ready_slot())
    service, user = talk.service, talk.user
    reply = ReplyInProgress(user, talk.conversation, "Go on")
    settings = USUAL.model_copy(update={"max_new_tokens": 24})
    service.in_progress.begin(reply, lambda stop: service.send(user, reply.question, settings, stop))
    assert reply.wait(PATIENCE)
    assert not reply.trouble
    question, answer = talk.messages()
    assert (question.text, answer.state) == ("Go on", "complete")
    assert len(store.replies.tokens(user, answer.id)) == 24
    service.close()


def test_the_end_of_the_program_leaves_a_reply_in_progress_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "ends.db"
    with Store.open(path) as store:
        service = ChatService(store, ready_slot())
        user = store.users.ensure("ann")
        conversation = store.chats.create(user)
        reply = ReplyInProgress(user, conversation, "Long")
        service.in_progress.begin(reply, lambda stop: service.send(user, reply.question, USUAL, stop))
        states = reply.follow()
        while not take(states):
            pass
        assert not reply.wait(0)
    assert reply.wait(PATIENCE)  # it ends by itself: the store is closed
    with Store.open(path) as again:
        assert again.messages.path(user, conversation)[-1].state == "interrupted"
        assert again.messages.path(user, conversation)[0].text == "Long"


def held(store: Store) -> list[str]:
    with store.connection.read() as db:
        return [text for (text,) in db.execute("SELECT text FROM waiting ORDER BY id")]


def test_a_question_is_stored_from_when_it_is_sent_until_its_turn(
    replies: InProgress, asked: ReplyInProgress, script: Script, store: Store
) -> None:
    def start(stop: threading.Event) -> Generator[State, None, None]:
        yield Frame("waiting", ahead=1)
        assert script.steps.acquire(timeout=PATIENCE)
        user, conversation = asked.user_id, asked.conversation_id
        store.messages.add(user, conversation, NewMessage(None, asked.text), [asked.held or 0])
        yield from script.start(stop)

    replies.begin(asked, start)
    assert held(store) == ["Question"]
    second, third = follows(asked, "Second"), follows(asked, "Third")
    replies.begin(second, script.start, lambda reply: True, waits=True)
    replies.begin(third, script.start, waits=True)
    refused = follows(asked, "Refused")
    assert not replies.begin(refused, script.start)
    assert held(store) == ["Question", "Second", "Third"]
    script.step()
    writes(asked, script)
    assert held(store) == ["Second", "Third"]
    assert replies.take_out(asked.user_id, third.number) is third
    assert held(store) == ["Second"]
    replies.stop(asked.user_id)
    end(asked, script)
    assert held(store) == []  # it went back to its page
    assert texts(store, asked) == ["Question"]


def test_a_question_that_cannot_be_stored_goes_back(
    replies: InProgress, asked: ReplyInProgress, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*place: object, **more: object) -> int:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(Messages, "enqueue", full)
    given: list[str] = []
    replies.begin(asked, script.start, lambda reply: not given.append(reply.text))
    assert asked.wait(PATIENCE)
    assert given == ["Question"]
    assert asked.trouble == "The disk is full."
    assert script.written == 0


def counting(stop: threading.Event, seen: list[int], last: int = 10**9) -> Generator[int, None, None]:
    for number in range(last + 1):
        seen.append(number)
        yield number
        if stop.is_set():
            return


@pytest.mark.parametrize("slow", [False, True])
def test_a_reader_gets_the_latest_in_order_and_always_the_last(slow: bool) -> None:
    stop, seen, values = threading.Event(), list[int](), list[int]()
    for value in in_reply_thread(lambda: counting(stop, seen, 500), stop):
        values.append(value)
        while slow and value < 500 and seen[-1] < min(value + 100, 500):  # it writes on meanwhile
            time.sleep(0.001)
    assert seen == list(range(501))
    assert (values[-1], values) == (500, sorted(set(values)))
    assert len(values) < 501 or not slow


def test_it_runs_in_one_other_thread_and_exceptions_pass_through() -> None:
    names: list[str] = []

    def failing() -> Generator[int, None, None]:
        for number in range(3):
            names.append(threading.current_thread().name)
            yield number
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(in_reply_thread(failing, threading.Event()))
    assert names == ["reply"] * 3


def test_a_reader_that_leaves_stops_the_work() -> None:
    stop = threading.Event()
    values = in_reply_thread(lambda: counting(stop, []), stop)
    next(values)
    values.close()
    assert stop.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "reply"]
