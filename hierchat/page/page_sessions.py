"""Keep the state of each open page, and the files that are to be sent from it."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import gradio as gr

from hierchat.chat.in_progress import ReplyInProgress
from hierchat.chat.service import ChatService
from hierchat.chat.spare_time import NextQuestion
from hierchat.language import _, later
from hierchat.page.screen import Attached, Screen
from hierchat.page.templates import Macros
from hierchat.store.records import Attachment

MOST_PAGES = 200
"""Pages that are known at a time; of more, those that asked for nothing for longest are forgotten."""
UNKNOWN = -1
"""No conversation, not even a new one."""
PLACE = ("place", 0)
"""The kind of a click that leads to another chat or view."""
PASTED = later("Pasted text")
MOST_CHARACTERS = 50_000_000
"""Characters of attached files that are kept for pages that may be loaded again; beyond, the oldest go."""
_STRAGGLERS = timedelta(minutes=1)
"""How long after its last event nothing of a closed page runs any more."""


class Stale(Exception):
    """Raised for a page that this process does not know: the program was restarted, or the browser slept for long."""


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

    def back(self, user_id: int, chat: int, files: Sequence[Attachment]) -> list[Attached]:
        """Return the files of a message that is not sent after all, to be attached to that chat again."""
        again = [
            Attached(secrets.token_hex(16), file.name, chat, file, pasted=file.name == PASTED)
            for file in files
        ]
        for one in again:
            self.keep(user_id, one)
        return again

    def _size(self) -> int:
        return sum(len(one.file.text) for one in self._files.values() if one.file)


class DrawnPage:
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
    """One open page, in this process only: what it shows, and how far that is drawn."""

    key: str = ""
    """By which Gradio knows the page."""
    user: int = 0
    """Whose page it is; 0 until it is loaded."""
    name: str = ""
    gone: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by whatever handles an event of the page, or draws it: one after the other."""
    screen: Screen = field(default_factory=Screen)
    clicks: dict[tuple[str, int], int] = field(default_factory=dict)
    """Number of the latest click, for a place (PLACE) and for each kind of change to each chat."""
    answered: str = ""
    """Number of the latest request for a reply, and whether it was taken or refused."""
    importing: threading.Event = field(default_factory=threading.Event)
    """Set to stop the import that this page began."""
    rests: bool = False
    """Whether the page has let its stream go, and will open it again when somebody looks at it."""

    following: dict[ReplyInProgress, Callable[[Any], Any] | None] = field(default_factory=dict)
    """The replies in progress that this page asked for, or showed, and what draws each as it grows."""
    reply: ReplyInProgress | None = None
    """The one that the screen shows."""
    begun: int = 0
    """How many replies this page has followed from its screen."""
    context: dict[int, str] = field(default_factory=dict)
    """Conversation -> its last line about the context window."""

    page: DrawnPage = field(default_factory=DrawnPage)
    drawn: Screen = field(default_factory=Screen)
    """The screen as it was drawn last: a page goes back to it from what cannot be drawn."""
    drawn_from: dict[str, object] = field(default_factory=dict)
    """For each part of the page, the values from which it was drawn last."""
    seen: tuple[str, int] = ("", UNKNOWN)
    """The model, and the count of the user's news (store.changes), at the last look for what changed."""
    model_looks: int = 0
    """How often the page asked how far a model is, or changed something about one."""
    model_busy: int = -2
    """The last of these looks at which a model was loaded or downloaded."""
    models_here: frozenset[str] = frozenset()
    """Models on this machine when they were listed last."""
    settings_of: int | None = UNKNOWN
    """The conversation whose settings the panel shows; None: one that is not stored yet."""
    settings_seen: int = 0
    """The count of the user's news when settings and presets were drawn, or changed here."""
    pending: dict[Any, Any] = field(default_factory=dict)
    """Values of Gradio's controls that the page has to fetch."""
    fetch: int = 0
    """Number of values that the stream asked the page to fetch."""
    given: dict[Any, Any] = field(default_factory=dict)
    """Last value of each control that users cannot change."""

    def show(self, **changes: Any) -> None:
        """Change what the page shows: fields of its Screen. The page's writer draws it."""
        with self.lock:
            self.screen = replace(self.screen, **changes)

    def leave(self, **changes: Any) -> None:
        """Show another place, without what belonged to the one before."""
        with self.lock:
            self.screen = replace(self.screen.left(), **changes)

    def forget_drawn(self) -> None:
        """Drop all that is drawn, which may hold deleted text; the page is drawn anew. From any thread."""
        self.drawn, self.drawn_from = self.screen, {}
        self.page.forget()

    def follow(self, reply: ReplyInProgress) -> None:
        """Draw a reply from now on, and its end, wherever the page goes meanwhile."""
        if reply not in self.following and reply.conversation_id == self.screen.conversation:
            self.begun += 1
            self.show(compared=None)
        self.following.setdefault(reply, None)

    def attach(self, file: Attached) -> None:
        """Attach a file, in the order of the clicks that chose them."""
        with self.lock:
            self.show(attached=tuple(sorted([*self.screen.attached, file], key=lambda one: one.step)))

    def renew(self, file: Attached) -> bool:
        """Replace an attached file by its new state, in the chat where it is now; False if it was taken away."""
        with self.lock:
            attached = self.screen.attached
            self.show(
                attached=tuple(
                    replace(file, chat=one.chat) if one.key == file.key else one for one in attached
                )
            )
        return any(one.key == file.key for one in attached)

    def release(self, keys: Collection[str]) -> list[Attached]:
        """Take away files that are sent or removed, by their keys; return them."""
        with self.lock:
            attached = self.screen.attached
            self.show(attached=tuple(one for one in attached if one.key not in keys))
        return [one for one in attached if one.key in keys]

    def gone_from(self, conversation: int) -> None:
        """Note that a chat is gone. If the page shows it, its unsent files go to the next new chat."""
        with self.lock:
            its = [one for one in self.screen.attached if one.chat == conversation]
            others = [one for one in self.screen.attached if one.chat != conversation]
            self.show(attached=tuple(others))
            if conversation == self.screen.conversation:
                again = tuple(replace(one, chat=0) for one in its)
                self.show(conversation=None, until=None, compared=None, attached=(*again, *others))

    @property
    def step(self) -> int:
        """Return the number of the latest click on a chat or a view: the one that the screen answers."""
        return self.clicks.get(PLACE, 0)

    def overtaken(self, step: int, kind: tuple[str, int] = PLACE) -> bool:
        """Return whether a later click of this kind has arrived before this one; 0 is none."""
        last = self.clicks.get(kind, 0)
        self.clicks[kind] = max(step, last)
        return 0 < step < last


class Sessions:
    """Holds the sessions of open pages by Gradio's session hash. From any thread: each method is one step of a dict."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def open(self, key: str | None) -> Session:
        """Return the session of a page that opens, a new one unless it is known."""
        return self._sessions.setdefault(key or "", Session(key or ""))

    def find(self, key: str | None) -> Session | None:
        return self._sessions.get(key or "")

    def of(self, key: str | None) -> Session:
        """Return the session of this page. Raises Stale: never begin a chat of which the page shows another one."""
        if (session := self.find(key)) is None:
            raise Stale(_("This page lost its connection to hierchat."))
        return session

    def close(self, key: str | None) -> Session | None:
        """Remove and return the session of a page that closes, or None; replies go on without it."""
        session = self._sessions.pop(key or "", None)
        if session is not None:
            session.gone = True
        return session

    def known(self) -> set[str]:
        return set(self._sessions)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def show(self, user_id: int, conversation_id: int) -> bool:
        """Return whether a page with an open stream shows a conversation: one that was just closed does not."""
        shown = (user_id, conversation_id)
        pages = (one for one in self.all() if one.page.streams)
        return any((one.user, one.screen.conversation) == shown for one in pages)


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
    screen = session.screen
    if screen.conversation is not None:
        return screen.conversation
    chat = service.chats.create(session.user, incognito=screen.incognito, project=screen.project)
    incognito = chat if screen.incognito else screen.incognito_chat
    session.show(conversation=chat, incognito=False, incognito_chat=incognito)
    session.settings_of = chat  # what the panel shows becomes its settings
    return chat


def read_ahead(service: ChatService, session: Session) -> None:
    """Let the model read ahead for the next question of this page, unless it is for a new incognito chat."""
    screen = session.screen
    if screen.incognito:
        return
    files = [one.file for one in screen.files if one.file]
    service.read_ahead(NextQuestion(session.user, screen.conversation, screen.project, files))


def end_incognito(service: ChatService, session: Session) -> None:
    """Erase the incognito conversation that the page has left, if it has. Does not wait for it."""
    ended = session.screen.incognito_chat
    if ended is not None and ended != session.screen.conversation:
        session.show(incognito_chat=None)
        service.chats.end_incognito(session.user, ended)
