"""Run replies in progress by user and conversation, each in a thread, whether or not a page follows it.
Messages that were sent meanwhile wait, and are asked one after the other."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from hierchat import logs
from hierchat.chat.frames import CompareFrame, Frame
from hierchat.language import here
from hierchat.store import NotFound, Store, StoreError, title_of
from hierchat.store.records import Attachment, NewMessage

State = Frame | CompareFrame
Start = Callable[[threading.Event], Generator[State, None, None]]
PATIENCE_SECONDS = 5.0
"""How long is waited for a reply that was stopped."""

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


def places_ahead(state: State) -> int | None:
    """Return how many replies come before a waiting one; None once its turn has come: then the question is stored."""
    frames = list(state.arms.values()) if isinstance(state, CompareFrame) else [state]
    return frames[0].ahead if all(frame.phase == "waiting" for frame in frames) else None


@dataclass(frozen=True, slots=True)
class NewQuestion:
    """New message of a user, and its place in a chat."""

    conversation_id: int
    parent_id: int | None
    """The message above it; None: it is the first."""
    text: str
    files: Sequence[Attachment] = ()
    held: int | None = None
    """The message as Messages.enqueue stored it when it was sent."""
    waited: float = 0.0
    """Seconds that it has waited for the reply before."""


@dataclass(eq=False, slots=True)
class ReplyInProgress:
    """Reply that waits or is being written, with its latest state."""

    user_id: int
    conversation_id: int
    text: str = ""
    """The question, where it is a new one."""
    files: Sequence[Attachment] = ()
    below: int | None = None
    """The last stored message that stands above: above the question, where it is a new one."""
    held: int | None = None
    """The question as the store holds it until its turn (Messages.enqueue)."""
    resumed: str = ""
    """The text with which it begins, where a reply that was cut goes on."""
    compared: bool = False
    """Whether it is written twice; its states are CompareFrames then."""
    on_screen: Callable[[], bool] = lambda: False
    """Whether an open page of the user shows its conversation."""
    waited: bool = False
    """Whether it waited for another one to end; its question goes below that one, then."""
    sent: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)
    number: int = field(default_factory=lambda: next(_numbers))
    latest: State | None = None
    begun: bool = False
    """Whether its turn came: then its question is stored."""
    trouble: str = ""
    """Why it could not begin or go on: a sentence for the page."""
    missing: bool = False
    """Whether that is because its conversation was deleted."""
    ended: threading.Event = field(default_factory=threading.Event)
    start: Start = field(init=False)
    """Yields its states; called in its turn."""

    @property
    def asks(self) -> bool:
        return bool(self.text or self.files)

    @property
    def above(self) -> int | None:
        """Return the id of the stored reply below which this one goes on, once it has called a tool."""
        return self.latest.above if isinstance(self.latest, Frame) else None

    @property
    def question(self) -> NewQuestion:
        """Return the question as ChatService.send takes it when its turn comes."""
        waited = time.monotonic() - self.sent if self.waited else 0.0
        return NewQuestion(self.conversation_id, self.below, self.text, self.files, self.held, waited)

    @property
    def title(self) -> str:
        return title_of(self.text) or next((file.name for file in self.files), "")

    @property
    def failed(self) -> bool:
        return bool(self.trouble) or (isinstance(self.latest, Frame) and self.latest.finish == "error")

    def put(self, state: State) -> None:
        self.latest = state
        self.begun = self.begun or places_ahead(state) is None


class InProgress:
    """Runs all replies in progress: at most one in each conversation."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = store.changes
        self._replies: dict[tuple[int, int], ReplyInProgress] = {}
        self._waiting: dict[tuple[int, int], list[ReplyInProgress]] = {}
        self._lock = threading.Lock()

    def begin(self, reply: ReplyInProgress, start: Start, *, waits: bool = False) -> bool:
        """Write a reply in a thread of its own, from the states of `start(reply.stop)`; return whether that has begun.
        If another one is being written in that conversation, it has not: then it waits for the end of that one, if it
        `waits`. Raises what the store raises; then nothing was stored.

        A question is stored from now on. If it is not asked in the end, it stays in the conversation without a reply,
        and so do those that wait for a reply that fails."""
        place = (reply.user_id, reply.conversation_id)
        reply.start = start
        if reply.asks and (waits or self.of(*place) is None):
            message = NewMessage(reply.below, reply.text, files=reply.files)
            reply.held = self._store.messages.enqueue(*place, message, at_end=waits)
        with self._lock:
            if busy := place in self._replies:
                if waits:
                    self._waiting.setdefault(place, []).append(reply)
            else:
                self._replies[place] = reply
        if not busy:
            threading.Thread(target=here(self._write), args=[reply], name="in progress", daemon=True).start()
        elif waits:
            self._changes.notify(reply.user_id)
        else:
            self._drop(reply)
        return not busy

    def of(self, user_id: int, conversation_id: int | None) -> ReplyInProgress | None:
        with self._lock:
            return self._replies.get((user_id, conversation_id or 0))

    def all_of(self, user_id: int) -> list[ReplyInProgress]:
        """Return a user's replies in progress, in the order in which they were asked for."""
        with self._lock:
            return [reply for (user, _), reply in self._replies.items() if user == user_id]

    def waiting(self, user_id: int) -> list[ReplyInProgress]:
        """Return a user's messages that wait for a reply to end; those of one conversation in their order."""
        with self._lock:
            return [reply for (user, _), many in self._waiting.items() if user == user_id for reply in many]

    def take_out(self, user_id: int, number: int) -> ReplyInProgress | None:
        """Remove a message from those that wait, and return it; None if it does not wait any longer."""
        with self._lock:
            queues = [many for (user, _), many in self._waiting.items() if user == user_id]
            found = next((reply for many in queues for reply in many if reply.number == number), None)
            if found is None:
                return None
            self._waiting[user_id, found.conversation_id].remove(found)
        self._drop(found)
        self._changes.notify(user_id)
        return found

    def end(self, user_id: int, conversation_id: int | None = None) -> None:
        """Stop the reply in a conversation, or all of a user's, and wait some seconds. Waiting messages are dropped."""
        with self._lock:
            places = [
                place
                for place in self._replies
                if place[0] == user_id and conversation_id in (None, place[1])
            ]
            dropped = [reply for place in places for reply in self._waiting.pop(place, [])]
            ending = [self._replies[place] for place in places]
        for reply in ending:
            reply.stop.set()
        for reply in dropped:
            self._drop(reply)
        for reply in ending:
            reply.ended.wait(PATIENCE_SECONDS)

    def _drop(self, reply: ReplyInProgress) -> None:
        """Remove the held question from the store. If that fails, a later start finds it in its conversation."""
        if reply.held is not None:
            with suppress(StoreError):
                self._store.messages.dequeue(reply.held)

    @staticmethod
    def _in_trouble(reply: ReplyInProgress, error: Exception) -> None:
        reply.missing, reply.trouble = isinstance(error, NotFound), logs.error_message(error)

    def _write(self, reply: ReplyInProgress) -> None:
        following: ReplyInProgress | None = reply
        while following is not None:
            with writes(following.stop):
                following = self._one(following)

    def _one(self, reply: ReplyInProgress) -> ReplyInProgress | None:
        """Write one reply; return the one that follows it and takes its place, or None."""
        place = (reply.user_id, reply.conversation_id)
        self._changes.notify(*place)
        try:
            if not reply.trouble:
                with closing(reply.start(reply.stop)) as states:
                    for state in states:
                        begins = not reply.begun
                        reply.put(state)
                        if begins and reply.begun:
                            self._changes.notify(*place)
                        self._changes.wake(reply.user_id)
        except Exception as error:
            self._in_trouble(reply, error)
        try:
            if reply.begun and not reply.on_screen():
                self._store.chats.mark_unread(*place, True)
            self._keep_unasked(reply)
        except Exception as error:  # as when the program ends meanwhile
            log.debug("a reply's end could not be noted: %s", type(error).__name__)
        following = self._next(place)
        self._changes.notify(*place)
        reply.ended.set()
        self._changes.wake(reply.user_id)
        return following

    def _next(self, place: tuple[int, int]) -> ReplyInProgress | None:
        below, error = None, None
        try:
            below = self._store.messages.last(*place)
        except Exception as caught:
            error = caught
        with self._lock:
            waiting = self._waiting.get(place, [])
            following = waiting.pop(0) if waiting else None
            if not waiting:
                self._waiting.pop(place, None)
            if following is None:
                del self._replies[place]
                return None
            self._replies[place] = following
            following.below, following.waited = below, True
            if error is not None:
                self._in_trouble(following, error)
        return following

    def _keep_unasked(self, reply: ReplyInProgress) -> None:
        """Make the questions that will not be asked one message without a reply. If the store fails, they become one
        when it is opened again."""
        place = (reply.user_id, reply.conversation_id)
        goes_on = reply.begun and not reply.failed
        unasked = [reply] if reply.asks and not reply.begun else []
        with self._lock:
            waiting = self._waiting.get(place, [])
            unasked += [one for one in waiting if not goes_on or one.stop.is_set()]
            waiting[:] = [one for one in waiting if one not in unasked]
        if unasked:
            text = "\n\n".join(one.text for one in unasked if one.text)
            files = [file for one in unasked for file in one.files]
            with suppress(StoreError):  # deleted: that was wanted
                below = self._store.messages.last(*place) if reply.begun else reply.below
                held = [one.held for one in unasked if one.held is not None]
                self._store.messages.add(*place, NewMessage(below, text, files=files), held)


_running: dict[threading.Thread, threading.Event] = {}
"""The threads that write replies, and what stops each."""


@contextmanager
def writes(stop: threading.Event) -> Iterator[None]:
    """Note that this thread writes a reply in the block, and that `stop` ends it, for `none_outlives`."""
    thread = threading.current_thread()
    _running[thread] = stop
    try:
        yield
    finally:
        del _running[thread]


@contextmanager
def none_outlives(seconds: float) -> Iterator[None]:
    """Stop every reply after the block, and wait: a thread in C++ at the interpreter's end would abort the process."""
    try:
        yield
    finally:
        left = dict(_running)
        for stop in left.values():
            stop.set()
        until = time.monotonic() + seconds
        for thread in left:
            thread.join(max(0.0, until - time.monotonic()))
