"""Replies in progress, by user and conversation. Each is written by a thread of its own, whether or not a page follows
it. Any number of pages may follow one: each takes the latest state when it is ready for it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from hierchat import logs
from hierchat.chat.frames import CompareFrame, Frame
from hierchat.chat.news import News
from hierchat.store import NotFound, Store, StoreError

State = Frame | CompareFrame
Start = Callable[[threading.Event], Generator[State, None, None]]
TakeBack = Callable[[str], bool]
"""Offers a question that was not asked in the end to the page that sent it; whether that page took it."""

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Pages(Protocol):
    """What is known above of open pages."""

    def show(self, user_id: int, conversation_id: int) -> bool:
        """Whether an open page of this user shows that conversation."""
        ...


class NoPages:
    """Without a page above."""

    def show(self, user_id: int, conversation_id: int) -> bool:
        """Never."""
        return False


def places_ahead(state: State) -> int | None:
    """How many replies come before, while it waits for its turn; None afterwards: then the question is stored."""
    frames = list(state.arms.values()) if isinstance(state, CompareFrame) else [state]
    return frames[0].ahead if all(frame.phase == "waiting" for frame in frames) else None


@dataclass(eq=False, slots=True)
class ReplyInProgress:
    """A reply that waits or is being written."""

    user_id: int
    conversation_id: int
    text: str = ""
    """The question, where it is a new one."""
    below: int | None = None
    """The last stored message that stands above: above the question, where it is a new one."""
    resumed: str = ""
    """The text with which it begins, where a reply that was cut goes on."""
    compared: bool = False
    """Whether it is written twice; its states are CompareFrames then."""
    stop: threading.Event = field(default_factory=threading.Event)
    number: int = field(default_factory=lambda: next(_numbers))
    latest: State | None = None
    begun: bool = False
    """Whether its turn came: then its question is stored."""
    trouble: str = ""
    """Why it could not begin or go on: a sentence for the page."""
    missing: bool = False
    """Whether that is because its conversation was deleted."""
    taken_back: bool = False
    """Whether the page that asked has the question again."""
    withdrawn: bool = False
    """Whether its conversation went with it, since nothing was asked there."""
    _count: int = 0
    _ended: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def follow(self) -> Iterator[State]:
        """The latest state, and each later one until it has ended; who is slow misses those between. Who leaves
        changes nothing."""
        seen = 0
        while True:
            with self._changed:
                while self._count == seen and not self._ended:
                    self._changed.wait()
                fresh, state, ended = self._count != seen, self.latest, self._ended
                seen = self._count
            if fresh and state is not None:
                yield state
            if ended:
                return

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it has come."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, seconds)

    def _put(self, state: State) -> None:
        with self._changed:
            self.latest = state
            self.begun = self.begun or places_ahead(state) is None
            self._count += 1
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class InProgress:
    """All replies in progress: at most one in each conversation."""

    def __init__(self, store: Store, news: News) -> None:
        self.pages: Pages = NoPages()
        self._store = store
        self._news = news
        self._replies: dict[tuple[int, int], ReplyInProgress] = {}
        self._lock = threading.Lock()

    def begin(self, reply: ReplyInProgress, start: Start, take_back: TakeBack = lambda text: False) -> bool:
        """Write it in a thread of its own, from `start(reply.stop)`; whether it may be: not where another one is being
        written in that conversation.

        A question that is not asked in the end goes to `take_back`. Where that refuses it, it stays in the
        conversation without a reply, or the conversation goes if there is none.
        """
        with self._lock:
            if (reply.user_id, reply.conversation_id) in self._replies:
                return False
            self._replies[reply.user_id, reply.conversation_id] = reply
        work = (reply, start, take_back)
        threading.Thread(target=self._write, args=work, name="in progress", daemon=True).start()
        return True

    def of(self, user_id: int, conversation_id: int | None) -> ReplyInProgress | None:
        """The reply in progress in that conversation."""
        with self._lock:
            return self._replies.get((user_id, conversation_id or 0))

    def all_of(self, user_id: int) -> list[ReplyInProgress]:
        """A user's, in the order in which they were asked for."""
        with self._lock:
            return [reply for (user, _), reply in self._replies.items() if user == user_id]

    def stop(self, user_id: int) -> None:
        """Stop all of a user's."""
        for reply in self.all_of(user_id):
            reply.stop.set()

    def _write(self, reply: ReplyInProgress, start: Start, take_back: TakeBack) -> None:
        place = (reply.user_id, reply.conversation_id)
        self._news.tell(*place)
        try:
            with closing(start(reply.stop)) as states:
                for state in states:
                    begins = not reply.begun
                    reply._put(state)
                    if begins and reply.begun:
                        self._news.tell(*place)
        except Exception as error:
            reply.missing, reply.trouble = isinstance(error, NotFound), logs.said(error)
        finally:
            try:
                if reply.begun:
                    self._mark(reply)
                else:
                    self._put_back(reply, take_back)
            except Exception as error:  # as when the program ends meanwhile
                log.debug("a reply's end could not be noted: %s", type(error).__name__)
            with self._lock:
                del self._replies[place]
            self._news.tell(*place)
            reply._end()

    def _mark(self, reply: ReplyInProgress) -> None:
        """A reply that comes while its conversation is not open is marked in the list."""
        if not self.pages.show(reply.user_id, reply.conversation_id):
            self._store.mark_unread(reply.user_id, reply.conversation_id, True)

    def _put_back(self, reply: ReplyInProgress, take_back: TakeBack) -> None:
        """Nothing was asked. Where the store fails, an empty conversation stays."""
        place = (reply.user_id, reply.conversation_id)
        if reply.text:
            reply.taken_back = take_back(reply.text)
            if not reply.taken_back:
                with suppress(StoreError):  # deleted: that was wanted
                    self._store.add_message(*place, reply.below, "user", reply.text)
        reply.withdrawn = self._store.discard_conversation(*place)
