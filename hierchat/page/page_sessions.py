"""Keep the state of each open page, and the files that are to be sent from it."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import gradio as gr

from hierchat.chat.comparison import USUAL, Pair
from hierchat.chat.in_progress import ReplyInProgress
from hierchat.chat.reading_ahead import NextQuestion
from hierchat.chat.service import ChatService
from hierchat.language import _, later
from hierchat.page.templates import Macros
from hierchat.store.records import Attachment

PAGE = 100
"""Conversations that the list takes in at a time."""
DRAWN = 100
"""Messages of a conversation that are drawn at first, the last ones: all of a long one would take the page minutes."""
MOST_PAGES = 200
"""Pages that are known at a time; of more, those that asked for nothing for longest are forgotten."""
UNKNOWN = -1
"""No conversation, not even a new one."""
PLACE = ("place", 0)
"""The kind of a click that leads to another chat or view."""
PASTED = later("Pasted text")
MOST_CHARACTERS = 50_000_000
"""Characters of attached files that are kept for pages that may be loaded again; beyond, the oldest go."""
_DIGITS = 18
"""Digits of a number that SQLite can hold."""
_STRAGGLERS = timedelta(minutes=1)
"""How long after its last event nothing of a closed page runs any more."""


class Stale(Exception):
    """Raised for a page that this process does not know: the program was restarted, or the browser slept for long."""


@dataclass(slots=True)
class Attached:
    """File that will be sent with the next message."""

    key: str
    """Chosen by the page, which asks for it by that name when it was loaded again."""
    name: str
    file: Attachment | None = None
    pasted: bool = False
    tokens: int | None = None
    more: bool = False
    counted_by: str = ""
    """The model whose tokens these are."""
    step: int = 0
    """Number of the click that chose it: files arrive in any order and stand in that of their steps."""


class KeptFiles:
    """Keeps files by user and key until they are sent, so that a page that is loaded again finds its own."""

    def __init__(self, most: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._files: OrderedDict[tuple[int, str], Attached] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, user_id: int, file: Attached) -> None:
        """Keep a file; over the limit of bytes, the oldest ones are dropped."""
        with self._lock:
            self._files[user_id, file.key] = file
            while len(self._files) > 1 and self._size() > self._most:
                self._files.popitem(last=False)

    def find(self, user_id: int, key: str) -> Attached | None:
        """Return a file by its key; None if it was sent or removed, or this process does not know it."""
        with self._lock:
            return self._files.get((user_id, key))

    def drop(self, user_id: int, files: Sequence[Attached]) -> None:
        """Remove files that were sent, or taken away."""
        with self._lock:
            for file in files:
                self._files.pop((user_id, file.key), None)

    def forget(self, user_id: int) -> None:
        with self._lock:
            for key in [key for key in self._files if key[0] == user_id]:
                del self._files[key]

    def back(self, user_id: int, attached: list[Attached], files: Sequence[Attachment]) -> None:
        """Attach files of a message that is not sent after all again, before what is `attached`."""
        again = [Attached(secrets.token_hex(16), file.name, file, file.name == PASTED) for file in files]
        for one in again:
            self.keep(user_id, one)
        attached[:0] = again

    def _size(self) -> int:
        return sum(len(one.file.text) for one in self._files.values() if one.file)


class PageScreen:
    """Content of one page: the HTML of each element by its id, and values for the page's script by name."""

    def __init__(self) -> None:
        self.parts: Mapping[str, str] = {}
        """Never changed, but replaced: a stream compares it with what it sent last."""
        self.streams: set[Callable[[], None]] = set()
        """One callback for each open stream, which wakes it."""

    def put(self, parts: Mapping[str, str]) -> None:
        """Change some parts. Wakes the streams if there is something to send."""
        now = {**self.parts, **parts}
        if now != self.parts:
            self.parts = now
            self.wake()

    def forget(self) -> None:
        """Drop all that is drawn; the next look at the page draws it anew."""
        self.parts = {}
        self.wake()

    def wake(self) -> None:
        """Have each stream look for what changed. From any thread."""
        for wake in list(self.streams):
            wake()


@dataclass(slots=True)
class Session:
    """State of one open page, in this process only."""

    key: str = ""
    """By which Gradio knows the page."""
    user: int = 0
    """Whose page it is; 0 until it is loaded."""
    name: str = ""
    gone: bool = False
    conversation: int | None = None
    """The conversation on the screen; replies may go on in others."""
    project: int | None = None
    """The project in which the next conversation begins;"""
    unfolded: int | None = None
    """that whose chats the list shows."""
    clicks: dict[tuple[str, int], int] = field(default_factory=dict)
    """Number of the latest click, for a place (PLACE) and for each kind of change to each chat."""
    panel: str = ""
    screen: PageScreen = field(default_factory=PageScreen)
    following: dict[ReplyInProgress, Callable[[Any], Any] | None] = field(default_factory=dict)
    """The replies in progress that this page asked for, or showed, and what draws each as it grows."""
    reply: ReplyInProgress | None = None
    """The one that the screen shows."""
    compared: ReplyInProgress | None = None
    """The comparison that has ended on the screen, until something else is shown."""
    begun: int = 0
    """How many replies this page has followed from its screen."""
    answered: str = ""
    """Number of the latest request for a reply, and whether it was taken or refused."""
    note: str = ""
    """Said in answer to a click that has to wait for the reply in progress; stands above its line."""
    seen: int = UNKNOWN
    """The count of the user's news (store.changes) that the whole screen shows at least."""
    list_seen: int = UNKNOWN
    """The count of the user's news (store.changes) that the list of chats shows; UNKNOWN: draw the list."""
    thread_seen: int = 0
    """The count of the user's news when the conversation on the screen was drawn."""
    incognito: bool = False
    """Whether the next conversation that this page begins is one."""
    incognito_chat: int | None = None
    removing: str = ""
    """The model, or the text, that shall be removed, once that is confirmed."""
    model_said: tuple[str, str] = ("", "")
    """In Models: where the last button's answer stands (a model's name, or a part of the view), and that as HTML."""
    models_detailed: set[str] = field(default_factory=set)
    """Models whose details were opened."""
    models_here: set[str] = field(default_factory=set)
    """Models on this machine when they were listed last."""
    models_by: str = ""
    """The column that the models are sorted by, behind a minus from its end."""
    pair: Pair = field(default_factory=lambda: USUAL)
    listed: int = PAGE
    drawn: int = DRAWN
    until: int | None = None
    """The last message that is drawn; None: that of the conversation."""
    marked: set[int] = field(default_factory=set)
    detailed: set[int] = field(default_factory=set)
    """Replies whose details were opened."""
    sources_by: str = ""
    """The model that was loaded when the thread was drawn last; empty: none was."""
    attached: dict[int, list[Attached]] = field(default_factory=dict)
    """Conversation (0: a new one) -> files for its next message."""
    shown: set[int] = field(default_factory=set)
    restored: bool = False
    """Whether the page has asked for the files that it had before it was loaded again."""
    context: dict[int, str] = field(default_factory=dict)
    """Conversation -> its last line about the context window."""
    archived: bool = False
    undo: str = ""
    deleted_open: bool = False
    """Whether the chat that was deleted last was on the screen, and nothing else was opened since."""
    picked: str = ""
    """The model that was loaded, or coming, when the page's picker was drawn."""
    titled: int = 0
    """How many titles of models the list has shown."""
    query: str = ""
    remark: str = ""
    """How a reply ended while its conversation was not on the screen."""
    about: str = ""
    """What the note or the remark is about; empty where that cannot be settled."""
    pending: dict[Any, Any] = field(default_factory=dict)
    """Values of Gradio's controls that the page has to fetch."""
    fetch: int = 0
    """Number of values that the stream asked the page to fetch."""
    rests: bool = False
    """Whether the page has let its stream go, and will open it again when somebody looks at it."""
    given: dict[Any, Any] = field(default_factory=dict)
    """Last value of each control that users cannot change."""
    settings_seen: int = 0
    """The count of the user's news when settings and presets were drawn, or changed here."""
    settings_of: int | None = UNKNOWN
    """The conversation whose settings the panel shows; None: one that is not stored yet."""
    importing: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whatever handles an event of the page, or draws its screen: one after the other."""

    def follow(self, reply: ReplyInProgress) -> None:
        """Draw a reply from now on, and its end, wherever the page goes meanwhile."""
        if reply not in self.following and reply.conversation_id == self.conversation:
            self.begun += 1
            self.compared = None
        self.following.setdefault(reply, None)

    def release(self, files: Sequence[Attached]) -> None:
        """Remove files that are sent, or taken away, from where they are attached."""
        keys = {file.key for file in files}
        for held in self.attached.values():
            held[:] = [file for file in held if file.key not in keys]

    @property
    def files(self) -> list[Attached]:
        """Return the files for the next message of the open conversation."""
        return self.attached.get(self.conversation or 0, [])

    def take(self, key: str) -> list[Attached]:
        """Remove the file with this key from where it is attached, and return it."""
        taken = [file for held in self.attached.values() for file in held if file.key == key]
        self.release(taken)
        return taken

    def gone_from(self, conversation: int) -> None:
        """Note that a chat is gone. If the page shows it, its unsent files go to the next new chat."""
        files = self.attached.pop(conversation, [])
        if conversation == self.conversation:
            self.conversation = self.until = self.compared = None
            self.attached.setdefault(0, [])[:0] = files

    @property
    def step(self) -> int:
        """Return the number of the latest click on a chat or a view: the one that the screen answers."""
        return self.clicks.get(PLACE, 0)

    def overtaken(self, step: int, kind: tuple[str, int] = PLACE) -> bool:
        """Return whether a later click of this kind has arrived before this one; 0 is none."""
        last = self.clicks.get(kind, 0)
        self.clicks[kind] = max(step, last)
        return 0 < step < last

    def leave(self) -> None:
        """Reset what belongs to the screen, which is about to change."""
        self.remark = self.note = self.about = self.panel = self.removing = ""
        self.compared = None
        self.model_said = ("", "")
        self.drawn, self.until = DRAWN, None
        self.deleted_open = False


class Sessions:
    """Holds the sessions of open pages by Gradio's session hash."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def open(self, key: str | None) -> Session:
        """Return the session of a page that opens, a new one unless it is known."""
        with self._lock:
            return self._sessions.setdefault(key or "", Session(key or ""))

    def find(self, key: str | None) -> Session | None:
        with self._lock:
            return self._sessions.get(key or "")

    def of(self, key: str | None) -> Session:
        """Return the session of this page. Raises Stale: never begin a chat of which the page shows another one."""
        if (session := self.find(key)) is None:
            raise Stale(_("This page lost its connection to hierchat."))
        return session

    def close(self, key: str | None) -> Session | None:
        """Remove and return the session of a page that closes, or None; replies go on without it."""
        with self._lock:
            session = self._sessions.pop(key or "", None)
        if session is not None:
            session.gone = True
        return session

    def known(self) -> set[str]:
        with self._lock:
            return set(self._sessions)

    def all(self) -> list[Session]:
        with self._lock:
            return list(self._sessions.values())

    def any_of(self, user: int) -> bool:
        with self._lock:
            return any(session.user == user for session in self._sessions.values())

    def show(self, user_id: int, conversation_id: int) -> bool:
        """Return whether a page with an open stream shows a conversation: one that was just closed does not."""
        shown = (user_id, conversation_id)
        with self._lock:
            pages = [one for one in self._sessions.values() if one.screen.streams]
        return any((one.user, one.conversation) == shown for one in pages)


def forget_stragglers(app: gr.Blocks, sessions: Sessions) -> None:
    """Drop what Gradio holds of closed pages whose last events outlived them."""
    before, known = datetime.now() - _STRAGGLERS, sessions.known()
    for key, used in list(app.state_holder.time_last_used.items()):
        if key not in known and used < before:
            for held in (app.state_holder.session_data, app.state_holder.time_last_used):
                held.pop(key, None)


# Conversations that leave nothing: the switch on the empty page, and their end when the page leaves them.
incognito_line = Macros("page.html").incognito


def open_conversation(service: ChatService, session: Session) -> int:
    """Return the id of the conversation on the screen; a new one is stored from now on, incognito if that is on."""
    if session.conversation is None:
        incognito, session.incognito = session.incognito, False
        chat = service.chats.create(session.user, incognito=incognito, project=session.project)
        session.conversation = chat
        session.incognito_chat = chat if incognito else session.incognito_chat
        session.settings_of = session.conversation  # what the panel shows becomes its settings
    return session.conversation


def from_address(query: Mapping[str, str]) -> tuple[int, str]:
    """Return the chat and the panel that a page's address names; 0 and "" for none."""
    chat = query.get("c", "")
    return int(chat) if chat.isdecimal() and len(chat) <= _DIGITS else 0, query.get("view", "")


def read_ahead(service: ChatService, session: Session) -> None:
    """Let the model read ahead for the next question of this page, unless it is for a new incognito chat."""
    if session.incognito:
        return
    files = [one.file for one in session.files if one.file]
    service.read_ahead(NextQuestion(session.user, session.conversation, session.project, files))


def end_incognito(service: ChatService, session: Session) -> None:
    """Erase the incognito conversation that the page has left, if it has. Does not wait for it."""
    if session.incognito_chat is not None and session.incognito_chat != session.conversation:
        ended, session.incognito_chat = session.incognito_chat, None
        service.chats.end_incognito(session.user, ended)
