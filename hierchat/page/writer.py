"""Write a page: draw what it shows, after each of its events and when something happens by itself."""

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import date

from hierchat.chat.frames import Arm
from hierchat.chat.in_progress import ReplyInProgress, State, places_ahead
from hierchat.chat.service import ChatService
from hierchat.page import conversation, status
from hierchat.page.components import Components
from hierchat.page.conversation import GrowingReply
from hierchat.page.page_sessions import Session, end_incognito
from hierchat.page.views import Update, Views, deleted

FIGURES_SECONDS = 0.5
"""How often the figures of a growing reply are drawn: nobody reads them faster."""
DrawState = Callable[[State], Update]


class Writer:
    """Draws those parts of a page whose values changed. Runs while nothing else of that page does."""

    def __init__(self, service: ChatService, parts: Components, views: Views) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._pieces: dict[str, tuple[Callable[[Session], object], Callable[[Session], Update]]] = {
            "account": (lambda session: session.name, views.account),
            "model": (lambda session: (session.model_looks, service.model_status.name), views.model),
            "offer": (self._of_offer, views.offer),
            "list": (self._of_list, views.chats),
            "heading": (self._of_heading, views.heading),
            "middle": (self._of_middle, views.middle),
            "documents": (self._of_documents, views.documents),
            "tray": (self._of_tray, views.tray),
            "live": (self._of_live, views.live),
        }
        """For each piece of the page, what gives the values it is drawn from, and what draws it."""

    def behind(self, session: Session) -> bool:
        """Return whether something changed since the page was drawn, without a look at the store."""
        return session.seen != self._news(session) or session.gone or not session.page.parts

    def write(self, session: Session) -> Update:
        """Draw what differs from what was drawn last. Raises what the store raises; then nothing counts as drawn."""
        news = self._news(session)
        self._follow(session)
        if session.seen != news:
            self._leave_what_is_gone(session)
        end_incognito(self._service, session)
        session.reply = self._on_screen(session)
        update: Update = {}
        kept = session.drawn_from
        before = kept if session.page.parts else {}
        after = {name: values(session) for name, (values, _draw) in self._pieces.items()}
        for name, (_values, draw) in self._pieces.items():
            if name not in before or before[name] != after[name]:
                update |= draw(session)
        update |= self._views.context(session) | self._growing(session) | self._views.settings(session)
        session.drawn, session.seen = session.screen, news
        if session.drawn_from is kept:  # else all was forgotten meanwhile (Session.forget_drawn)
            session.drawn_from = after
        return update

    def _news(self, session: Session) -> tuple[str, int]:
        return self._service.model_status.name, self._service.changes.count(session.user)

    def _of_offer(self, session: Session) -> object:
        """Return the values of the offer. It looks at the disk, so only where it is seen: on the empty page."""
        screen = session.screen
        return screen.conversation is None and not screen.panel and self._views.offered()

    def _of_list(self, session: Session) -> object:
        """Return the values of the list. The open chat is none of them: the page's script marks it (list.js)."""
        screen, user = session.screen, session.user
        writing = [one.conversation_id for one in self._service.in_progress.all_of(user)]
        shown = (screen.query, screen.listed, screen.archived, screen.unfolded, screen.undo)
        return self._service.changes.count(user), writing, session.models_here, date.today(), shown

    def _of_heading(self, session: Session) -> object:
        screen = session.screen
        place = screen.panel, screen.conversation, screen.project, screen.incognito, screen.incognito_chat
        return self._service.changes.count(session.user), place

    def _of_middle(self, session: Session) -> object:
        screen, reply, now = session.screen, session.reply, self._service.model_status
        if screen.panel:
            return screen.panel, screen.visit
        sources = screen.marked and now.phase == "ready" and now.name
        writing = reply and (reply.number, reply.above, getattr(reply.latest, "phase", "") == "calling")
        return (
            screen.conversation, self._service.changes.changed(session.user, screen.conversation), writing, sources,
            screen.drawn, screen.until, screen.marked, screen.detailed, screen.shown, screen.compared is None,
        )  # fmt: skip

    def _of_documents(self, session: Session) -> object:
        screen, now = session.screen, self._views.reading(session)
        reading = now and (now.done, now.name, len(now.unread), now.ended.is_set())
        place = screen.conversation, screen.project, screen.said_of_documents
        return self._service.changes.count(session.user), place, reading

    def _of_tray(self, session: Session) -> object:
        waiting = [one.number for one in self._service.in_progress.waiting(session.user)]
        return session.screen.conversation, session.screen.attached, session.screen.restored, waiting

    def _of_live(self, session: Session) -> object:
        """Return the values of the line above the box; `_drawing` draws the figures of a growing reply there."""
        screen, replies = session.screen, self._service.in_progress.all_of(session.user)
        phases = [(one.number, getattr(one.latest, "phase", "")) for one in replies]
        shown = session.reply and session.reply.number
        return (
            self._service.changes.count(session.user),
            screen.conversation,
            screen.note,
            screen.remark,
            shown,
            phases,
        )

    def _leave_what_is_gone(self, session: Session) -> None:
        """Leave a chat and a project that were deleted, here or on another page, and note that the chat is read."""
        user, screen = session.user, session.screen
        if screen.conversation is not None:  # its reply may have come while the page's stream was cut
            self._service.chats.mark_read(user, screen.conversation)
            if not self._service.chats.has(user, screen.conversation):
                self._views.missing(session, kept=False)
        if screen.project is not None and self._views.project(session) is None:
            session.show(project=None)
        if screen.archived and not self._service.chats.count_archived(user):
            session.show(archived=False)

    def _follow(self, session: Session) -> None:
        """Follow the reply on the screen, and no longer those that have ended."""
        now = self._views.now(session)
        if now is not None:
            session.follow(now)
        for reply in [one for one in session.following if one.ended.is_set()]:
            del session.following[reply]
            self._end(session, reply)

    def _on_screen(self, session: Session) -> ReplyInProgress | None:
        """Return the reply that the screen shows. One whose end this page has not drawn is still in progress here."""
        ending = (one for one in session.following if one.conversation_id == session.screen.conversation)
        reply = self._views.now(session) or next(ending, None)
        if reply is not None:
            self._views.window(session, reply)
        return reply

    def _growing(self, session: Session) -> Update:
        """Draw the replies that this page follows, as far as they have come."""
        update: Update = {}
        for reply, draw in list(session.following.items()):
            if (state := reply.latest) is not None:
                session.following[reply] = draw = draw or self._drawing(session, reply)
                update |= draw(state)
        return update

    def _drawing(self, session: Session, reply: ReplyInProgress) -> DrawState:
        """Return a function that draws the states of a reply one after the other, its figures as often as can be
        read; nothing of one whose chat is not on the screen."""
        p, words, sides = self._parts, GrowingReply(), defaultdict[Arm, GrowingReply](GrowingReply)
        seen: State | None = None
        phase, counted, above = "", 0.0, reply.above

        def line() -> Update:
            return {p.live: session.screen.note + self._views.line(reply)}

        def draw(state: State) -> Update:
            nonlocal seen, phase, counted, words, above
            if state is seen or session.screen.conversation != reply.conversation_id:
                return {}
            seen = state
            news, phase = phase != getattr(state, "phase", ""), getattr(state, "phase", "")
            if reply.compared:
                return self._views.columns(conversation.arms(state), sides) | line()
            if reply.above != above or phase == "calling":
                above, words = reply.above, GrowingReply()
            if places_ahead(state) is not None or phase == "calling":
                return line()
            update: Update = {p.growing: conversation.growing_reply(state, reply, words)}
            now = time.monotonic()
            if news or now - counted >= FIGURES_SECONDS:
                update |= line()
                counted = now
            return update

        return draw

    def _end(self, session: Session, reply: ReplyInProgress) -> None:
        """Note how a reply ended."""
        self._views.window(session, reply)
        on_screen = session.screen.conversation == reply.conversation_id
        if on_screen or reply.trouble:
            # What another one had to say, which ended at the same time, stays.
            session.show(note="")
            if remark := self._remark(reply):
                session.show(remark=status.closable(remark))
        replaced = self._views.now(session) is not None  # by the reply to a message that waited
        if on_screen and reply.compared and reply.begun and not replaced:
            session.show(compared=reply)

    def _remark(self, reply: ReplyInProgress) -> str:
        """Return the error or notice of a reply that has ended."""
        if not reply.trouble:
            return conversation.remark(reply)
        sentence = deleted(kept=False) if reply.missing else reply.trouble
        if reply.asks and not reply.begun:
            sentence = f"“{reply.title}”: {sentence}"
        return status.error(sentence)
