"""Handlers that write a reply: send, again, edit, continue, compare. Each is a generator of updates.

A reply is written below the page (chat/in_progress.py), at most one in each conversation. A page follows those that it
asked for, and those in conversations that it shows; the screen shows that of the conversation on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.chat.comparison import CompareFrame
from hierchat.chat.conversations import reply_settings
from hierchat.chat.in_progress import ReplyInProgress, Start, State, TakeBack, places_ahead
from hierchat.language import _, later
from hierchat.page import chat_settings, comparison_view, conversation, page_sessions, status
from hierchat.page.components import Components
from hierchat.page.composer import FILES, LENGTH
from hierchat.page.event_data import whole
from hierchat.page.page_sessions import PAGE, Session, Sessions
from hierchat.page.panels.panel import SessionOf
from hierchat.page.reply_text import GrowingReply
from hierchat.page.unsent import KeptFiles
from hierchat.page.views import Update, Views, deleted
from hierchat.runtime.template import PromptError
from hierchat.store import Attachment, NotFound
from hierchat.texts.attachments import with_files

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.store import ChatSettings, Message

Draw = Callable[[Session, ReplyInProgress, State], Update]
_STAYS = later(
    "A reply is still being written in this chat. Your message stays in the box: send it when the reply has ended, "
    "or stop the reply first."
)
_STILL = later("A reply is still being written in this chat. Stop it first.")
_READING = later("A file is still being read. Send the message when that is done.")
_GONE = later("This message is not in the open chat any more.")


class ReplyHandlers:
    """Handle what writes a reply."""

    def __init__(
        self,
        service: ChatService,
        parts: Components,
        views: Views,
        sessions: Sessions,
        session_of: SessionOf,
        kept: KeptFiles,
    ) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._session_of = session_of
        self._sessions = sessions
        self._kept = kept
        self._nothing: Update = {parts.live: gr.skip()}

    def send(
        self, text: str, compare: bool, query: str, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """Ask what is in the box at the end of the open conversation, or when its reply in progress has ended."""
        session, user = self._session_of(request)
        attached = list(session.attached.get(session.conversation or 0, []))
        files = [one.file for one in attached if one.file]
        if not text.strip() and not attached:
            yield self._nothing
            return
        if len(files) < len(attached):
            yield self._views.tell(session, user, status.notice(_(_READING)), FILES)
            return
        settings = self._settings(session, user, values)
        try:
            self._service.require_room(
                with_files(text, files), reply_settings(settings.sampling), settings.system_prompt
            )
        except PromptError as error:  # before anything is stored, and without waiting for a turn
            yield self._views.tell(session, user, status.error(str(error)), LENGTH)
            return
        reply = self._views.now(session, user)
        if reply and reply in session.following and reply.text == text and not files:
            yield self._nothing  # Enter pressed twice is no second message
            return
        try:
            below = self._below(session, user)
        except NotFound:
            yield self._views.missing(session, user, kept=True)
            return
        self._conversation(session, user)
        session.release(attached)
        self._kept.drop(user, attached)
        emptied = {self._parts.box: ""}
        for update in self._ask(session, user, below, text, compare, query, settings, files, waits=True):
            yield update | emptied
            emptied = {}  # only once: what is typed from here on stays

    def example(
        self, compare: bool, query: str, event: gr.EventData, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """Ask an example prompt as if it was typed."""
        session, user = self._session_of(request)
        settings = self._settings(session, user, values)
        if self._views.now(session, user) is None:
            below, text = self._below(session, user), str(event._data["text"])
            yield from self._ask(session, user, below, text, compare, query, settings)

    def edit(
        self, compare: bool, query: str, event: gr.EventData, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """Ask a new version of a question: a sibling of the old one."""
        session, user = self._session_of(request)
        session.unsent = text = str(event._data["text"])  # not lost, whatever comes
        if self._views.now(session, user) is not None:
            yield self._views.tell(session, user, status.notice(_(_STAYS)))
            return
        settings = self._settings(session, user, values)
        path = self._path(session, user)
        place = next((i for i, m in enumerate(path) if m.id == int(event._data["id"])), None)
        if place is None or path[place].role != "user":
            yield self._views.tell(session, user, status.error(_(_GONE)))
            return
        session.unsent = ""
        files = self._service.chats.attachments(user, path[place].id)
        yield from self._ask(
            session, user, path[place].parent_id, text, compare, query, settings, files
        )  # fmt: skip

    def again(self, query: str, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Update]:
        """Write another reply to the same question; with the seed of the reply that is named, if one is."""
        session, user = self._session_of(request)
        settings = self._settings(session, user, values)
        question = next((m.id for m in self._path(session, user) if m.id == int(event._data["id"])), None)
        if question is None or session.conversation is None:
            yield self._views.tell(session, user, status.error(_(_GONE)))
            return
        reply = self._in_progress(user, session.conversation, below=question)
        seed_of = whole(event._data.get("text") or 0) or None

        def start(stop: threading.Event) -> Generator[State, None, None]:
            chat_settings.keep(self._service, session, user, reply.conversation_id, settings)
            made = reply_settings(settings.sampling)
            return self._service.regenerate(user, question, made, stop, seed_of=seed_of)

        yield from self._go_on(session, reply, query, start)

    def resume(self, query: str, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Update]:
        """Go on with the reply at the end of the open conversation, which was cut."""
        session, user = self._session_of(request)
        more = int(self._settings(session, user, values).sampling["max_new_tokens"])
        path = self._path(session, user)
        if not path or path[-1].id != int(event._data["id"]):
            yield self._views.tell(session, user, status.error(_(_GONE)))
            return
        cut = path[-1]
        reply = self._in_progress(user, cut.conversation_id, below=cut.parent_id, resumed=cut.text)
        yield from self._go_on(
            session, reply, query, lambda stop: self._service.resume(user, cut.id, more, stop)
        )

    def follow(self, request: gr.Request) -> Iterator[Update]:
        """Follow a reply in progress in the open conversation, which another page asked for, or this one before a
        reload; or
        one to a message that waited."""
        session, user = self._session_of(request)
        if (reply := self._views.now(session, user)) is None:
            yield self._nothing
            return
        yield from self._follow(session, reply, session.query)

    def _in_progress(self, user: int, conversation: int, **more: Any) -> ReplyInProgress:
        return ReplyInProgress(
            user, conversation, on_screen=partial(self._sessions.show, user, conversation), **more
        )

    def _settings(self, session: Session, user: int, values: tuple[Any, ...]) -> ChatSettings:
        """`values`: the chat whose settings the panel shows, and they. Raises InvalidSettings."""
        shown, *fields = values
        return chat_settings.taken(self._service, user, session.conversation, shown, fields)

    def _path(self, session: Session, user: int) -> list[Message]:
        if session.conversation is None:
            return []
        return self._service.chats.messages(user, session.conversation)

    def _below(self, session: Session, user: int) -> int | None:
        """The last message of the open conversation."""
        if session.conversation is None:
            return None
        return self._service.chats.last_message(user, session.conversation)

    def _conversation(self, session: Session, user: int) -> int:
        """The open conversation; a new one is stored."""
        with session.lock:
            if session.conversation is None:
                session.conversation = page_sessions.begin(self._service, session, user)
                session.settings_of = session.conversation  # what the panel shows becomes its settings
            return session.conversation

    def _ask(
        self, session: Session, user: int, parent: int | None, text: str, compare: bool, query: str,
        settings: ChatSettings, files: Sequence[Attachment] = (), *, waits: bool = False,
    ) -> Iterator[Update]:  # fmt: skip
        """A question below `parent`. Its conversation is there from now on; it goes again if nothing is asked. `waits`:
        behind the reply in progress there, if there is one; else it goes back into the box then."""
        conversation = self._conversation(session, user)
        reply = self._in_progress(user, conversation, text=text, files=files, below=parent, compared=compare)

        def start(stop: threading.Event) -> Generator[State, None, None]:
            if not reply.waited:  # else they were kept when it was sent, and may have been changed since
                chat_settings.keep(self._service, session, user, conversation, settings)
            made = reply_settings(settings.sampling)
            if compare:
                return self._service.compare(user, reply.question, made, stop, session.pair)
            return self._service.send(user, reply.question, made, stop)

        take_back = self._take_back(session)
        if self._service.in_progress.begin(reply, start, take_back, waits=waits):
            self._begun(session)
            yield from self._follow(session, reply, query)
        elif waits:
            yield self._views.tray(session, user)
        else:
            take_back(reply)
            yield self._views.tray(session, user) | self._views.tell(session, user, status.notice(_(_STAYS)))

    def _go_on(self, session: Session, reply: ReplyInProgress, query: str, start: Start) -> Iterator[Update]:
        """A reply to what is stored already."""
        if self._service.in_progress.begin(reply, start):
            self._begun(session)
            yield from self._follow(session, reply, query)
        else:
            yield self._views.tell(session, reply.user_id, status.notice(_(_STILL)))

    def _begun(self, session: Session) -> None:
        session.listed = PAGE  # a long list would slow each frame of the reply
        session.remark = session.note = ""
        session.until = None

    def _take_back(self, session: Session) -> TakeBack:
        """Return what takes a question back into the box, with its files, while the page shows that conversation."""

        def take_back(reply: ReplyInProgress) -> bool:
            if session.gone or session.conversation != reply.conversation_id:
                return False
            session.unsent = "\n\n".join(filter(None, [session.unsent, reply.text]))
            attached = session.attached.setdefault(reply.conversation_id, [])
            self._kept.back(reply.user_id, attached, reply.files)
            return True

        return take_back

    def _follow(self, session: Session, reply: ReplyInProgress, query: str) -> Iterator[Update]:
        """A reply from where it stands to its end, on the screen as long as its conversation is there. The page may
        leave at any moment: the reply goes on."""
        with session.lock:
            known = reply in session.following
            session.following.add(reply)
        if known:
            yield self._nothing
            return
        begun, on_screen = False, True
        draw = self._columns() if reply.compared else self._drawn()
        try:
            # The first update precedes anything slow, so that Gradio can cancel from here on.
            yield self._whole(session, reply, query)
            for state in reply.follow():
                on_screen = session.conversation == reply.conversation_id
                if places_ahead(state) is None and not begun:
                    begun = True
                    shown = self._views.chats(session, reply.user_id, query)
                    if on_screen:
                        shown |= self._views.heading(session, reply.user_id)
                        shown |= self._views.busy(session, reply.user_id)
                    yield shown | self._views.tray(session, reply.user_id)
                yield draw(session, reply, state) if on_screen else self._nothing
        finally:
            session.following.discard(reply)
            on_screen = session.conversation == reply.conversation_id
        yield self._ended(session, reply, query, on_screen)

    def _whole(self, session: Session, reply: ReplyInProgress, query: str) -> Update:
        chats = self._views.chats(session, reply.user_id, query)
        if session.conversation != reply.conversation_id:
            return chats
        try:
            return chats | self._views.conversation(session, reply.user_id)
        except NotFound:  # it could not begin, and its conversation went with it: its end tells why
            return chats

    def _drawn(self) -> Draw:
        """Draws states of a reply one after the other."""
        p, words = self._parts, GrowingReply()
        said = ""

        def draw(session: Session, reply: ReplyInProgress, state: State) -> Update:
            nonlocal said
            line = conversation.line(reply, self._service)
            news, said = line != said, line
            if places_ahead(state) is not None:
                # Stop once more: what answers a click on New may have come behind the first update.
                shown = {p.live: session.note + line} | self._views.busy(session, reply.user_id)
                return shown if news else self._nothing
            return {
                p.growing: conversation.growing_reply(state, reply, words),
                p.live: session.note + line,
                **self._views.window(session, reply),
            }

        return draw

    def _columns(self) -> Draw:
        """Return what draws the states of a comparison."""
        words = comparison_view.words()

        def draw(session: Session, reply: ReplyInProgress, state: State) -> Update:
            line = session.note + conversation.line(reply, self._service)
            return self._views.columns(conversation.arms(state), words) | {self._parts.live: line}

        return draw

    def _ended(self, session: Session, reply: ReplyInProgress, query: str, on_screen: bool) -> Update:
        p, user = self._parts, reply.user_id
        self._views.window(session, reply)
        if on_screen or reply.trouble:
            # What another one had to say, which ended at the same time, stays.
            session.note = ""
            if remark := self._remark(reply):
                session.remark, session.about = status.closable(remark), ""
        if on_screen and reply.withdrawn:
            session.gone_from(reply.conversation_id)
            session.settings_of = None  # what the panel shows is for the next one
        update = self._views.chats(session, user, query)
        if not on_screen:
            return update | self._views.live(session, user) | self._views.tray(session, user)
        # Where a message waited, the reply to it is in progress by now.
        compared = reply.compared and reply.begun and self._views.now(session, user) is None
        update |= self._views.conversation(session, user, "versus" if compared else None)
        if compared:
            last = reply.latest if isinstance(reply.latest, CompareFrame) else None
            update |= self._views.columns(conversation.arms(last)) | {p.back: gr.update(visible=True)}
            update[p.verdict], update[p.result] = comparison_view.ended(last)
        return update

    def _remark(self, reply: ReplyInProgress) -> str:
        """Return what is to be said of a reply that has ended."""
        if not reply.trouble:
            return conversation.remark(reply)
        sentence = deleted(kept=True) if reply.missing else reply.trouble
        if reply.asks and not reply.begun and not reply.taken_back:
            sentence = f"“{reply.title}”: {sentence}"
        return status.error(sentence)
