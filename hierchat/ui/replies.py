"""Handlers that write a reply: send, again, edit, continue, compare. Each is a generator of updates.

Each conversation has its own reply in progress; what the screen shows is that of the conversation on it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat import logs
from hierchat.attachments.prompt import with_files
from hierchat.chat.frames import CompareFrame, Frame
from hierchat.runtime.prompt import MessageTooLong
from hierchat.store import NotFound, StoreError, title_of
from hierchat.ui import chat_settings, sampling, status, thread, versus
from hierchat.ui.figures import figures_line
from hierchat.ui.guard import Who
from hierchat.ui.layout import Parts
from hierchat.ui.markdown import Growing
from hierchat.ui.sessions import PAGE, Running, Session
from hierchat.ui.unsent import Attached, Kept, Queued
from hierchat.ui.views import Update, Views, context, deleted

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.store import ChatSettings, Message

Start = Callable[[threading.Event], Generator[Any, None, None]]
_STAYS = (
    "A reply is still being written in this chat. Your message stays in the box: send it when the reply has ended, "
    "or stop the reply first."
)
_STILL = "A reply is still being written in this chat. Stop it first."
_READING = "A file is still being read. Send the message when that is done."
_GONE = "This message is not in the open chat any more."


class ReplyHandlers:
    """The handlers."""

    def __init__(self, service: ChatService, parts: Parts, views: Views, who: Who, kept: Kept) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._who = who
        self._kept = kept
        self._nothing: Update = {parts.live: gr.skip()}

    def send(
        self, text: str, compare: bool, query: str, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """What is in the box, asked at the end of the open conversation, or when its reply in progress has ended."""
        session, user = self._who(request)
        files = list(session.attached.get(session.conversation or 0, []))
        if not text.strip() and not files:
            yield self._nothing
            return
        if any(file.file is None for file in files):
            yield self._views.tell(session, status.notice(_READING))
            return
        settings = self._settings(session, user, values)
        try:
            self._service.require_room(
                with_files(text, [file.file for file in files if file.file]),
                sampling.reply_settings(settings.sampling),
                settings.system_prompt,
            )
        except MessageTooLong as error:  # before anything is stored, and without waiting for a turn
            yield self._views.tell(session, status.error(str(error)))
            return
        emptied = {self._parts.box: ""}
        if (running := session.now) is not None:
            if running.text == text and not files:  # Enter pressed twice is no second message
                yield self._nothing
                return
            self._wait(session, session.conversation, text, compare, settings, files)
            yield self._views.tray(session) | emptied
            return
        try:
            path = self._path(session, user)
        except NotFound:
            yield self._views.missing(session, user, kept=True)
            return
        parent = path[-1].id if path else None
        for update in self._ask(session, user, path, parent, text, compare, query, settings, files):
            yield update | emptied
            emptied = {}  # only once: what is typed from here on stays

    def example(
        self, compare: bool, query: str, event: gr.EventData, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """An example prompt, asked as if typed."""
        session, user = self._who(request)
        settings = self._settings(session, user, values)
        if session.now is None:
            path, text = self._path(session, user), str(event._data["text"])
            yield from self._ask(
                session, user, path, path[-1].id if path else None, text, compare, query, settings
            )

    def edit(
        self, compare: bool, query: str, event: gr.EventData, request: gr.Request, *values: Any
    ) -> Iterator[Update]:
        """A new version of a question: a sibling of the old one."""
        session, user = self._who(request)
        session.unsent = text = str(event._data["text"])  # not lost, whatever comes
        if session.now is not None:
            yield self._views.tell(session, status.notice(_STAYS))
            return
        settings = self._settings(session, user, values)
        path = self._path(session, user)
        place = next((i for i, m in enumerate(path) if m.id == int(event._data["id"])), None)
        if place is None or path[place].role != "user":
            yield self._views.tell(session, status.error(_GONE))
            return
        session.unsent = ""
        yield from self._ask(
            session, user, path[:place], path[place].parent_id, text, compare, query, settings,
            [Attached("", file.name, file) for file in self._service.store.attachments(user, path[place].id)],
        )  # fmt: skip

    def again(self, query: str, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Update]:
        """Another reply to the same question; with the seed of the reply that is named, if one is."""
        session, user = self._who(request)
        settings = self._settings(session, user, values)
        path = self._path(session, user)
        place = next((i for i, m in enumerate(path) if m.id == int(event._data["id"])), None)
        if place is None:
            yield self._views.tell(session, status.error(_GONE))
            return
        question, conversation = path[place].id, path[place].conversation_id
        seed_of = int(event._data.get("text") or 0) or None

        def start(stop: threading.Event) -> Generator[Any, None, None]:
            chat_settings.keep(self._service, user, conversation, settings)
            made = sampling.reply_settings(settings.sampling)
            return self._service.regenerate(user, question, made, stop, seed_of=seed_of)

        yield from self._go_on(session, user, path[: place + 1], query, "", start)

    def resume(self, query: str, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Update]:
        """The reply at the end of the open conversation, which was cut, goes on."""
        session, user = self._who(request)
        more = int(self._settings(session, user, values).sampling["max_new_tokens"])
        path = self._path(session, user)
        if not path or path[-1].id != int(event._data["id"]):
            yield self._views.tell(session, status.error(_GONE))
            return
        reply = path[-1]
        yield from self._go_on(
            session, user, path[:-1], query, thread.growing(reply.text, Growing()),
            lambda stop: self._service.resume(user, reply.id, more, stop),
        )  # fmt: skip

    def _settings(self, session: Session, user: int, values: tuple[Any, ...]) -> ChatSettings:
        """`values`: the chat whose settings the panel shows, and they. Raises SettingsError."""
        shown, *fields = values
        return chat_settings.taken(self._service, user, session.conversation, shown, fields)

    def _path(self, session: Session, user: int) -> list[Message]:
        if session.conversation is None:
            return []
        return [m for m in self._service.store.messages(user, session.conversation) if m.role != "system"]

    def _ask(
        self, session: Session, user: int, path: list[Message], parent: int | None, text: str, compare: bool,
        query: str, settings: ChatSettings, files: Sequence[Attached] = (), waited_in: int | None = None,
    ) -> Iterator[Update]:  # fmt: skip
        """A question below `path`, in the open conversation or in the one where it waited. It is there from now on; it
        goes again if nothing is asked."""
        running = Running(text, parent, list(files), asks=True, versus=compare)
        if (conversation := self._enter(session, user, running, waited_in)) is None:
            there = waited_in or session.conversation
            self._wait(session, there, text, compare, settings, files, first=True)
            yield self._views.tray(session)
            return
        session.release(files)
        sent = [file.file for file in files if file.file]

        def start(stop: threading.Event) -> Generator[Any, None, None]:
            if waited_in is None:  # else they were kept when it was sent, and may have been changed since
                chat_settings.keep(self._service, user, conversation, settings)
            asked = (user, conversation, parent, text, sampling.reply_settings(settings.sampling))
            if compare:
                return self._service.compare(*asked, stop, sent, session.pair)
            return self._service.send(*asked, stop, sent)

        draw = self._compared if compare else self._drawn
        yield from self._follow(session, user, conversation, running, query, start, draw, path)

    def _go_on(
        self, session: Session, user: int, path: list[Message], query: str, growing: str, start: Start
    ) -> Iterator[Update]:
        """A reply to what is stored already."""
        running = Running(growing=growing)
        if (conversation := self._enter(session, user, running)) is None:
            yield self._views.tell(session, status.notice(_STILL))
            return
        yield from self._follow(session, user, conversation, running, query, start, self._drawn, path)

    def _enter(
        self, session: Session, user: int, running: Running, conversation: int | None = None
    ) -> int | None:
        """The conversation in which it runs from now on; None where another reply runs there."""
        with session.lock:
            conversation = conversation or session.conversation
            if conversation in session.running:
                return None
            if conversation is None:
                conversation = session.conversation = self._service.store.create_conversation(user)
                session.settings_of = conversation  # what the panel shows becomes its settings
            session.running[conversation] = running
            session.listed = PAGE  # a long list would slow each frame of the reply
            session.remark = ""
            running.live = status.waiting("Waiting for the model…")
            return conversation

    def _wait(
        self, session: Session, conversation: int | None, text: str, compare: bool, settings: ChatSettings,
        files: Sequence[Attached], first: bool = False,
    ) -> None:  # fmt: skip
        """Behind the reply in progress there; it takes its files along."""
        session.release(files)
        with session.lock:
            waiting = session.queued.setdefault(conversation or 0, [])
            waiting.insert(
                0 if first else len(waiting),
                Queued(secrets.token_hex(8), text, compare, settings, list(files)),
            )

    def _next(self, session: Session, user: int, conversation: int, query: str) -> Iterator[Update]:
        """The message that waited for a reply which has ended."""
        with session.lock:
            waiting = session.queued.get(conversation)
            one = waiting.pop(0) if waiting else None
        if one is None:
            return
        path = [m for m in self._service.store.messages(user, conversation) if m.role != "system"]
        parent = path[-1].id if path else None
        yield from self._ask(
            session, user, path, parent, one.text, one.compare, query, one.settings, one.files, conversation
        )

    def _take_back(self, session: Session, running: Running, conversation: int) -> None:
        """What was not asked goes back into the box, and so does what waited for it."""
        with session.lock:
            waiting = session.queued.pop(conversation, [])
        texts = [*([] if running.begun else [running.text]), *(one.text for one in waiting)]
        session.unsent = "\n\n".join(filter(None, texts))
        files = [*([] if running.begun else running.files), *(file for one in waiting for file in one.files)]
        if files:
            session.attached.setdefault(session.conversation or 0, [])[:0] = files

    def _follow(
        self, session: Session, user: int, conversation: int, running: Running, query: str, start: Start,
        draw: Callable[[Session, int, Running, Any], Update], path: list[Message],
    ) -> Iterator[Update]:  # fmt: skip
        """A reply, and then those to the messages that waited for its end."""
        yield from self._one(session, user, conversation, running, query, start, draw, path)
        if running.begun and not running.failed:
            yield from self._next(session, user, conversation, query)

    def _one(
        self, session: Session, user: int, conversation: int, running: Running, query: str, start: Start,
        draw: Callable[[Session, int, Running, Any], Update], path: list[Message],
    ) -> Iterator[Update]:  # fmt: skip
        """A reply from its place in the queue to its end, on the screen as long as its conversation is there."""

        def here() -> bool:
            return session.conversation == conversation

        on_screen = True
        try:
            running.thread = thread.thread(self._service, user, path, session.marked, session.shown)
            if running.asks:
                sent = thread.files(file.file for file in running.files if file.file)
                running.thread += thread.user_message(running.text, files=sent)
            # The first update precedes anything slow, so that Gradio can cancel from here on.
            yield self._views.conversation(session, user) | self._views.chats(session, user, query)
            with closing(start(running.stop)) as items:
                for item in items:
                    if (ahead := _ahead(item)) is not None:
                        line = status.waiting_line(ahead, self._service.host)
                        news, running.live = line != running.live, line
                        # Stop once more: what answers a click on New may have come behind the first update.
                        shown = self._views.live(session, user) | self._views.busy(session)
                        yield shown if news and here() else self._nothing
                        continue
                    if not running.begun:
                        running.begun = True
                        self._kept.drop(user, running.files)
                        update = self._views.chats(session, user, query)
                        if here():
                            update |= self._views.heading(session, user) | self._views.busy(session)
                        yield update
                    update = draw(session, conversation, running, item)
                    yield update if here() else self._nothing
        except Exception as error:
            sentence = deleted(kept=True) if isinstance(error, NotFound) else logs.said(error)
            if not running.begun and running.asks and not here():
                sentence = f"“{title_of(running.text)}”: {sentence}"
                self._keep(session, user, conversation, running)
            running.failed, running.remark = True, status.error(sentence)
        finally:
            running.stop.set()
            on_screen = here()
            session.running.pop(conversation, None)
            if not running.begun and on_screen:  # first, since what follows may fail
                session.unsent = running.text
            if not running.begun:
                self._withdraw(session, user, conversation)
            if on_screen and (running.failed or not running.begun):
                self._take_back(session, running, conversation)
        if running.failed or on_screen:
            session.remark = running.remark
        yield self._ended(session, user, running, query, on_screen)

    def _keep(self, session: Session, user: int, conversation: int, running: Running) -> None:
        """A question that could not be asked while its chat is not on the screen: it stands there without a reply."""
        sent = [file.file for file in running.files if file.file]
        try:
            self._service.store.add_message(user, conversation, running.parent, "user", running.text, sent)
        except StoreError:
            session.unsent = running.text

    def _withdraw(self, session: Session, user: int, conversation: int) -> None:
        """A conversation in which nothing was asked goes. Where the store fails, an empty one stays."""
        try:
            gone = self._service.store.discard_conversation(user, conversation)
        except Exception as error:
            logs.said(error)
            return
        if gone and session.conversation == conversation:
            session.conversation = session.settings_of = None

    def _drawn(self, session: Session, conversation: int, running: Running, frame: Frame) -> Update:
        p = self._parts
        running.failed, running.remark = frame.finish == "error", _remark(frame)
        line = status.context_line(frame)
        session.context[conversation] = line or session.context.get(conversation, "")
        note = status.notice(frame.notice) if frame.notice else ""
        if frame.phase == "reading":
            running.live = note + status.reading_line(frame)
        else:
            running.growing = thread.growing(frame.text, running.drawn)
            running.live = note + figures_line(frame.figures)
        return {
            p.growing: running.growing,
            p.live: running.note + running.live,
            p.context: context(session.context[conversation]),
        }

    def _compared(self, session: Session, conversation: int, running: Running, frame: CompareFrame) -> Update:
        running.live, running.arms, running.compared = "", frame.arms, frame
        if arm := frame.arms.get("second"):
            line = status.context_line(arm)
            session.context[conversation] = line or session.context.get(conversation, "")
        return self._views.columns(frame.arms, running.columns) | {self._parts.live: running.note}

    def _ended(self, session: Session, user: int, running: Running, query: str, on_screen: bool) -> Update:
        p = self._parts
        update = self._views.chats(session, user, query) | self._views.plan()
        if on_screen:
            compared = running.versus and running.begun
            update |= self._views.conversation(session, user, "versus" if compared else None)
            if compared:
                update |= self._views.columns(running.arms) | {p.back: gr.update(visible=True)}
                update[p.verdict], update[p.result] = versus.ended(running.compared)
        else:
            update |= self._views.live(session, user) | self._views.tray(session)
        return update


def _ahead(item: Frame | CompareFrame) -> int | None:
    """How many replies come before, while it waits for its turn; None afterwards: then the question is stored."""
    frames = list(item.arms.values()) if isinstance(item, CompareFrame) else [item]
    return frames[0].ahead if all(frame.phase == "waiting" for frame in frames) else None


def _remark(frame: Frame) -> str:
    if frame.finish == "error":
        return status.error(frame.notice or "The reply could not be finished.")
    return status.notice(frame.notice) if frame.notice else ""
