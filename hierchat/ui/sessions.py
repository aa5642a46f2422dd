"""What each open page is doing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hierchat.chat.configuration import USUAL, Pair
from hierchat.chat.frames import Arm, CompareFrame, Frame
from hierchat.ui.markdown import Growing
from hierchat.ui.unsent import Attached, Queued

PAGE = 100
"""Conversations that the list takes in at a time."""
UNKNOWN = -1
"""No conversation, not even a new one."""


class Stale(Exception):
    """A page that this process does not know: the program was started again, or the browser slept for long."""


@dataclass(slots=True)
class Running:
    """A reply that waits or is being written: all that is drawn while its conversation is on the screen."""

    text: str = ""
    """The question; given back where it is not asked in the end."""
    parent: int | None = None
    """The message below which the question will stand."""
    files: list[Attached] = field(default_factory=list)
    """What is sent with it."""
    asks: bool = False
    """Whether it begins with a question; a reply may also be written to one that is stored."""
    begun: bool = False
    """Whether the question is stored."""
    versus: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    thread: str = ""
    growing: str = ""
    live: str = ""
    note: str = ""
    """Said in answer to a click that has to wait; stands above `live`."""
    remark: str = ""
    """What is to be said when it has ended."""
    failed: bool = False
    arms: Mapping[Arm, Frame] = field(default_factory=dict)
    compared: CompareFrame | None = None
    """The last one of a comparison."""
    drawn: Growing = field(default_factory=Growing)
    """What of the reply is drawn, from one frame to the next; of a comparison, of each arm:"""
    columns: dict[Arm, Growing] = field(default_factory=lambda: {"first": Growing(), "second": Growing()})


@dataclass(slots=True)
class Session:
    """One open page. Lives in this process only."""

    conversation: int | None = None
    """The conversation on the screen; replies may go on in others."""
    panel: str = ""
    """What stands on the screen in place of a conversation."""
    running: dict[int, Running] = field(default_factory=dict)
    """Conversation -> its reply in progress."""
    pair: Pair = field(default_factory=lambda: USUAL)
    """What Compare runs."""
    listed: int = PAGE
    """How many conversations the list shows at most."""
    marked: set[int] = field(default_factory=set)
    """Replies whose tokens are shown by source."""
    attached: dict[int, list[Attached]] = field(default_factory=dict)
    """Conversation (0: a new one) -> files for its next message."""
    queued: dict[int, list[Queued]] = field(default_factory=dict)
    """Conversation -> messages that wait for its reply in progress to end."""
    shown: set[int] = field(default_factory=set)
    """Files of messages whose text is shown."""
    restored: bool = False
    """Whether the page has asked for the files that it had before it was loaded again."""
    context: dict[int, str] = field(default_factory=dict)
    """Conversation -> its last line about the context window."""
    shelf: bool = False
    """Whether the list shows the archived conversations."""
    undo: str = ""
    """The line below the list that takes back the last deletion."""
    deleted_open: bool = False
    """Whether what was deleted last was on the screen."""
    titled: int = 0
    """How many titles of models the list has shown."""
    query: str = ""
    """What the list of conversations was last searched for."""
    remark: str = ""
    """How a reply ended while its conversation was not on the screen."""
    unsent: str = ""
    """Text that goes back into the box."""
    settings_of: int | None = UNKNOWN
    """The conversation whose settings the panel shows; None: one that is not stored yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a reply is entered in `running`."""

    @property
    def now(self) -> Running | None:
        """The reply in progress in the conversation on the screen."""
        return self.running.get(self.conversation or 0)

    def release(self, files: Sequence[Attached]) -> None:
        """These files go with a message: they are not to be sent once more."""
        keys = {file.key for file in files}
        for held in self.attached.values():
            held[:] = [file for file in held if file.key not in keys]

    def unqueue(self, key: str) -> Queued | None:
        """Take out a message that waits; None where it does no more."""
        with self.lock:
            for waiting in self.queued.values():
                for one in waiting:
                    if one.key == key:
                        waiting.remove(one)
                        return one
        return None

    def forget(self, conversation: int) -> None:
        """It is being deleted: nothing more is sent there, and what was to be sent stays in the box."""
        with self.lock:
            waiting = self.queued.pop(conversation, [])
        files = [file for one in waiting for file in one.files] + self.attached.pop(conversation, [])
        if conversation == self.conversation:
            self.attached.setdefault(0, []).extend(files)

    def leave(self) -> None:
        """What is on the screen is about to change."""
        self.remark = self.panel = ""


class Sessions:
    """Sessions by Gradio's session hash."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def open(self, key: str | None) -> Session:
        """A page was opened."""
        with self._lock:
            return self._sessions.setdefault(key or "", Session())

    def of(self, key: str | None) -> Session:
        """The session of this page. Raises Stale: never begin a chat of which the page shows another one."""
        with self._lock:
            if (session := self._sessions.get(key or "")) is None:
                raise Stale("This page lost its connection to hierchat.")
            return session

    def close(self, key: str | None) -> None:
        """The page is gone: stop what it was waiting for and forget it."""
        with self._lock:
            session = self._sessions.pop(key or "", None)
        if session is not None:
            for running in list(session.running.values()):
                running.stop.set()
