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
from hierchat.engine.scheduler import MOST_WAITING
from hierchat.language import _, later
from hierchat.page import chat_settings, comparison_view, conversation, status
from hierchat.page.composer import FILES, LENGTH
from hierchat.page.event_data import PageEvent, whole
from hierchat.page.guard import HandlerGroup, Remark
from hierchat.page.page_sessions import PAGE, Session, begin_conversation
from hierchat.page.reply_text import GrowingReply
from hierchat.page.views import Update, deleted
from hierchat.runtime.model_slot import PLACES
from hierchat.runtime.template import PromptError
from hierchat.store import NotFound
from hierchat.texts.attachments import with_files

if TYPE_CHECKING:
    from hierchat.store import ChatSettings, Message

Draw = Callable[[Session, ReplyInProgress, State], Update]
_STAYS = later(
    "A reply is still being written in this chat. Your message stays in the box: send it when the reply has ended, "
    "or stop the reply first."
)
_GONE = later("This message is not in the open chat any more.")


class ReplyHandlers(HandlerGroup):
    """Handle what writes a reply."""

    def wire(self) -> None:
        p, shown = self._parts, [self._parts.bus, *self._parts.settings.fields]
        for trigger in (p.box.submit, p.send.click):
            self._ask_on(trigger, self.send, [p.box, p.compare, *shown])
        self._ask_on("hc_example", self.example, [p.compare, *shown])
        self._ask_on("hc_edit", self.edit, [p.compare, *shown])
        self._ask_on("hc_again", self.again, shown)
        self._ask_on("hc_continue", self.resume, shown)
        # Those that another page asked for are followed apart, so that they keep none from being asked.
        self._ask_on("hc_follow", self.follow, [], queue="follow")

    def _ask_on(self, trigger: Any, handler: Any, inputs: Sequence[Any], queue: str = "engine") -> None:
        """Join a handler that follows a reply. Replies wait below the page, for the engine, so all may run here;
        "multiple": a message may wait for the reply in another chat."""
        p, most = self._parts, MOST_WAITING + PLACES
        sent = self._page.on(
            trigger, handler, inputs, trigger_mode="multiple", concurrency_id=queue, concurrency_limit=most
        )
        settled = [p.box, p.live, p.tray, p.send, p.stop]
        self._page.on(sent.then, self.settle, [p.box], settled, trigger_mode="always_last")

    def send(self, event: PageEvent, text: str, compare: bool, *values: Any) -> Iterator[Update]:
        """Ask what is in the box at the end of the open conversation, or when its reply in progress has ended."""
        session, user = event.session, event.user
        attached = list(session.files)
        files = [one.file for one in attached if one.file]
        if not text.strip() and not attached:
            return
        if len(files) < len(attached):
            raise Remark(
                _("A file is still being read. Send the message when that is done."), FILES, notice=True
            )
        settings = self._settings(session, values)
        sampling = reply_settings(settings.sampling)
        try:
            self._service.require_room(with_files(text, files), sampling, settings.system_prompt)
        except PromptError as error:  # before anything is stored, and without waiting for a turn
            raise Remark(str(error), LENGTH) from error
        reply = self._views.now(session)
        if reply and reply in session.following and reply.text == text and not files:
            return  # Enter pressed twice is no second message
        try:
            below = self._below(session)
        except NotFound:
            yield self._views.missing(session, kept=True)
            return
        reply = self._question(session, below, text, compare, files)
        session.release(attached)
        self._page.kept.drop(user, attached)
        emptied = {self._parts.box: ""}
        for update in self._ask(session, reply, settings, waits=True):
            yield update | emptied
            emptied = {}  # only once: what is typed from here on stays

    def example(self, event: PageEvent, compare: bool, *values: Any) -> Iterator[Update]:
        """Ask an example prompt as if it was typed."""
        session = event.session
        settings = self._settings(session, values)
        if self._views.now(session) is None:
            reply = self._question(session, self._below(session), event.text, compare)
            yield from self._ask(session, reply, settings)

    def edit(self, event: PageEvent, compare: bool, *values: Any) -> Iterator[Update]:
        """Ask a new version of a question: a sibling of the old one."""
        session = event.session
        session.unsent = event.text  # not lost, whatever comes
        if self._views.now(session) is not None:
            raise Remark(_(_STAYS), notice=True)
        settings = self._settings(session, values)
        edited = self._on_path(session, event.id)
        if edited.role != "user":
            raise Remark(_(_GONE))
        session.unsent = ""
        files = self._service.chats.attachments(event.user, edited.id)
        reply = self._question(session, edited.parent_id, event.text, compare, files)
        yield from self._ask(session, reply, settings)

    def again(self, event: PageEvent, *values: Any) -> Iterator[Update]:
        """Write another reply to the same question; with the seed of the reply that is named, if one is."""
        session, user = event.session, event.user
        settings = self._settings(session, values)
        question = self._on_path(session, event.id)
        reply = self._in_progress(session, question.conversation_id, below=question.id)
        seed_of = whole(event.data.get("text") or 0) or None

        def start(stop: threading.Event) -> Generator[State, None, None]:
            chat_settings.keep(self._service, session, reply.conversation_id, settings)
            made = reply_settings(settings.sampling)
            return self._service.regenerate(user, question.id, made, stop, seed_of=seed_of)

        yield from self._go_on(session, reply, start)

    def resume(self, event: PageEvent, *values: Any) -> Iterator[Update]:
        """Go on with the reply at the end of the open conversation, which was cut."""
        session = event.session
        more = int(self._settings(session, values).sampling["max_new_tokens"])
        path = self._path(session)
        if not path or path[-1].id != event.id:
            raise Remark(_(_GONE))
        cut = path[-1]
        reply = self._in_progress(session, cut.conversation_id, below=cut.parent_id, resumed=cut.text)
        yield from self._go_on(
            session, reply, lambda stop: self._service.resume(reply.user_id, cut.id, more, stop)
        )

    def follow(self, event: PageEvent) -> Iterator[Update]:
        """Follow the open chat's reply in progress, which another page asked for, or this one before a reload."""
        if (reply := self._views.now(event.session)) is not None:
            yield from self._follow(event.session, reply)

    def settle(self, event: PageEvent, box: str) -> Update:
        """Put back what was sent and not asked, before what is in the box by now, and draw the line above it again: of
        two replies that end at once, the page may have heard of the earlier one last."""
        session, views = event.session, self._views
        update = views.live(session) | views.busy(session) | views.tray(session)
        text, session.unsent = session.unsent, ""
        if text:
            update[self._parts.box] = f"{text}\n\n{box}" if box.strip() else text
        return update

    def _settings(self, session: Session, values: Sequence[Any]) -> ChatSettings:
        """`values`: the chat whose settings the panel shows, and they. Raises InvalidSettings."""
        shown, *fields = values
        return chat_settings.taken(self._service, session, shown, fields)

    def _path(self, session: Session) -> list[Message]:
        if session.conversation is None:
            return []
        return self._service.chats.messages(session.user, session.conversation)

    def _on_path(self, session: Session, message: int) -> Message:
        """Find a message of the open conversation. Raises Remark where it is not there any more."""
        found = next((one for one in self._path(session) if one.id == message), None)
        if found is None:
            raise Remark(_(_GONE))
        return found

    def _below(self, session: Session) -> int | None:
        """The last message of the open conversation."""
        if session.conversation is None:
            return None
        return self._service.chats.last_message(session.user, session.conversation)

    def _in_progress(self, session: Session, conversation: int, **more: Any) -> ReplyInProgress:
        on_screen = partial(self._page.sessions.show, session.user, conversation)
        return ReplyInProgress(session.user, conversation, on_screen=on_screen, **more)

    def _question(
        self, session: Session, below: int | None, text: str, compare: bool, files: Sequence[Any] = ()
    ) -> ReplyInProgress:
        """Make a question below a message. A new conversation is stored from now on; it goes if nothing is asked."""
        with session.lock:
            if session.conversation is None:
                session.conversation = begin_conversation(self._service, session)
                session.settings_of = session.conversation  # what the panel shows becomes its settings
            conversation = session.conversation
        return self._in_progress(session, conversation, text=text, files=files, below=below, compared=compare)

    def _ask(
        self, session: Session, reply: ReplyInProgress, settings: ChatSettings, *, waits: bool = False
    ) -> Iterator[Update]:
        """Ask a question. `waits`: behind a reply in progress there; else it goes back into the box then."""

        def start(stop: threading.Event) -> Generator[State, None, None]:
            if not reply.waited:  # else they were kept when it was sent, and may have been changed since
                chat_settings.keep(self._service, session, reply.conversation_id, settings)
            made = reply_settings(settings.sampling)
            if reply.compared:
                return self._service.compare(reply.user_id, reply.question, made, stop, session.pair)
            return self._service.send(reply.user_id, reply.question, made, stop)

        take_back = self._take_back(session)
        if self._service.in_progress.begin(reply, start, take_back, waits=waits):
            yield from self._begun(session, reply)
        elif waits:
            yield self._views.tray(session)
        else:
            take_back(reply)
            yield self._views.tray(session) | self._views.tell(session, status.notice(_(_STAYS)))

    def _go_on(self, session: Session, reply: ReplyInProgress, start: Start) -> Iterator[Update]:
        """A reply to what is stored already."""
        if not self._service.in_progress.begin(reply, start):
            raise Remark(_("A reply is still being written in this chat. Stop it first."), notice=True)
        yield from self._begun(session, reply)

    def _begun(self, session: Session, reply: ReplyInProgress) -> Iterator[Update]:
        session.listed = PAGE  # a long list would slow each frame of the reply
        session.remark = session.note = ""
        session.until = None
        yield from self._follow(session, reply)

    def _take_back(self, session: Session) -> TakeBack:
        """Return what takes a question back into the box, with its files, while the page shows that conversation."""

        def take_back(reply: ReplyInProgress) -> bool:
            if session.gone or session.conversation != reply.conversation_id:
                return False
            session.unsent = "\n\n".join(filter(None, [session.unsent, reply.text]))
            attached = session.attached.setdefault(reply.conversation_id, [])
            self._page.kept.back(reply.user_id, attached, reply.files)
            return True

        return take_back

    def _follow(self, session: Session, reply: ReplyInProgress) -> Iterator[Update]:
        """Draw a reply from here to its end, while its chat is on the screen. The page may leave: it goes on."""
        with session.lock:
            known = reply in session.following
            session.following.add(reply)
            if not known and session.conversation == reply.conversation_id:
                session.begun += 1
        if known:
            yield {}
            return
        begun, views = False, self._views
        draw = self._columns() if reply.compared else self._drawn()
        try:
            # The first update precedes anything slow, so that Gradio can cancel from here on.
            yield self._whole(session, reply)
            for state in reply.follow():
                on_screen = session.conversation == reply.conversation_id
                if places_ahead(state) is None and not begun:
                    begun = True
                    shown = views.chats(session)
                    if on_screen:
                        shown |= views.heading(session) | views.busy(session)
                    yield shown | views.tray(session)
                yield draw(session, reply, state) if on_screen else {}
        finally:
            session.following.discard(reply)
            on_screen = session.conversation == reply.conversation_id
        yield self._ended(session, reply, on_screen)

    def _whole(self, session: Session, reply: ReplyInProgress) -> Update:
        chats = self._views.chats(session)
        if session.conversation != reply.conversation_id:
            return chats
        try:
            whole = chats | self._views.conversation(session)
        except NotFound:  # it could not begin, and its conversation went with it: its end tells why
            return chats
        # One that has ended by now is drawn as such by its end alone: the foot below a reply is the last that comes.
        return chats if reply.wait(0) else whole

    def _drawn(self) -> Draw:
        """Return what draws the states of a reply one after the other."""
        p, words = self._parts, GrowingReply()
        said = ""

        def draw(session: Session, reply: ReplyInProgress, state: State) -> Update:
            nonlocal said
            line = self._views.line(reply)
            news, said = line != said, line
            if places_ahead(state) is not None:
                # Stop once more: what answers a click on New may have come behind the first update.
                return {p.live: session.note + line} | self._views.busy(session) if news else {}
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
            line = session.note + self._views.line(reply)
            return self._views.columns(conversation.arms(state), words) | {self._parts.live: line}

        return draw

    def _ended(self, session: Session, reply: ReplyInProgress, on_screen: bool) -> Update:
        p, views = self._parts, self._views
        views.window(session, reply)
        if on_screen or reply.trouble:
            # What another one had to say, which ended at the same time, stays.
            session.note = ""
            if remark := self._remark(reply):
                session.remark, session.about = status.closable(remark), ""
        if on_screen and reply.withdrawn:
            session.gone_from(reply.conversation_id)
            session.settings_of = None  # what the panel shows is for the next one
        update = views.chats(session)
        if not on_screen:
            return update | views.live(session) | views.tray(session)
        # Where a message waited, the reply to it is in progress by now.
        compared = reply.compared and reply.begun and views.now(session) is None
        update |= views.conversation(session, compared=compared)
        if compared:
            last = reply.latest if isinstance(reply.latest, CompareFrame) else None
            update |= views.columns(conversation.arms(last)) | {p.back: gr.update(visible=True)}
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
