"""Draw what happens to a page by itself: replies that are written in its chats, and changes that other pages made."""

import time
from collections import defaultdict
from collections.abc import Callable

from hierchat.chat.frames import Arm, Frame
from hierchat.chat.in_progress import ReplyInProgress, State, places_ahead
from hierchat.chat.service import ChatService
from hierchat.page import conversation, status
from hierchat.page.components import Components
from hierchat.page.conversation import GrowingReply
from hierchat.page.page_sessions import UNKNOWN, Session
from hierchat.page.views import Update, Views, deleted

FIGURES_SECONDS = 0.5
"""How often the figures of a growing reply are drawn: nobody reads them faster."""
DrawState = Callable[[State], Update]


class Follower:
    """Draws news of a page's screen. Runs while nothing else of that page does."""

    def __init__(self, service: ChatService, parts: Components, views: Views) -> None:
        self._service = service
        self._parts = parts
        self._views = views

    def behind(self, session: Session) -> bool:
        """Return whether something changed since the page was drawn, without a look at the store."""
        now, count = self._service.model_status.name, self._service.changes.count(session.user)
        changed = session.picked != now or session.seen != count or session.list_seen == UNKNOWN
        return changed or session.gone or not session.screen.parts

    def news(self, session: Session) -> Update:
        """Draw what changed since the last look: ends of replies, then the store's news, then the growing reply."""
        if not session.screen.parts:
            return self._views.whole(session)
        now = self._views.now(session)
        if now is not None and now not in session.following:
            session.follow(now)
        update: Update = {}
        for reply in [one for one in session.following if one.wait(0)]:
            del session.following[reply]
            update |= self._ended(session, reply)
        if any(one is not now and one.conversation_id == session.conversation for one in session.following):
            return update  # it ends at this moment, and then wakes the page again
        update |= self._changed(session)
        for reply, draw in list(session.following.items()):
            if (state := reply.latest) is not None:
                session.following[reply] = draw = draw or self._drawing(session, reply)
                update |= draw(state)
        return update

    def _changed(self, session: Session) -> Update:
        """Draw what was changed in the store, here or on another page."""
        user, views, changes = session.user, self._views, self._service.changes
        update = views.model(session) if session.picked != self._service.model_status.name else {}
        if session.seen == (count := changes.count(user)) and session.list_seen != UNKNOWN:
            return update
        shown = session.conversation
        if shown is not None:  # its reply may have come while the page's stream was cut
            self._service.chats.mark_read(user, shown)
        if session.list_seen != count:
            update |= views.chats(session)
        update |= views.settings_news(session)
        if shown is not None and not self._service.chats.has(user, shown):
            return update | views.missing(session, kept=False)
        if changes.changed(user, shown) > session.thread_seen:
            update |= views.conversation(session)
        else:
            update |= views.heading(session) | views.live(session) | views.tray(session)
        session.seen = count
        return update

    def _drawing(self, session: Session, reply: ReplyInProgress) -> DrawState:
        """Return a function that draws the states of a reply one after the other, its figures as often as can be
        read; of one whose chat is not on the screen, whether it waits for an answer of the user."""
        p, words, sides = self._parts, GrowingReply(), defaultdict[Arm, GrowingReply](GrowingReply)
        seen: State | None = None
        phase, counted, above = "", 0.0, reply.above

        def draw(state: State) -> Update:
            nonlocal seen, phase, counted, words, above
            if state is seen:
                return {}
            seen = state
            news, phase = phase != getattr(state, "phase", ""), getattr(state, "phase", "")
            if session.conversation != reply.conversation_id:
                return self._views.live(session) if news else {}
            line = {p.live: session.note + self._views.line(reply)}
            if reply.compared:
                return self._views.columns(conversation.arms(state), sides) | line
            if reply.above != above or (isinstance(state, Frame) and phase == "calling"):
                above, words = reply.above, GrowingReply()
                return self._views.conversation(session)
            if places_ahead(state) is not None:
                return line
            update: Update = {p.growing: conversation.growing_reply(state, reply, words)}
            now = time.monotonic()
            if news or now - counted >= FIGURES_SECONDS:
                update |= line | self._views.window(session, reply)
                counted = now
            return update

        return draw

    def _ended(self, session: Session, reply: ReplyInProgress) -> Update:
        views, on_screen = self._views, session.conversation == reply.conversation_id
        views.window(session, reply)
        if on_screen or reply.trouble:
            # What another one had to say, which ended at the same time, stays.
            session.note = ""
            if remark := self._remark(reply) or self._lesson(reply):
                session.remark, session.about = status.closable(remark), ""
        update = views.chats(session)
        if not on_screen:
            return update | views.live(session) | views.tray(session)
        replaced = views.now(session) is not None  # by the reply to a message that waited
        if reply.compared and reply.begun and not replaced:
            session.compared = reply
        return update | views.conversation(session)

    def _lesson(self, reply: ReplyInProgress) -> str:
        """Return the explanation that belongs to one of the user's first replies, and note that it was shown."""
        users = self._service.users
        told = users.chosen(reply.user_id, "told", 0)
        if lesson := conversation.lesson(reply.latest, told, self._service.model_status):
            users.choose(reply.user_id, told=told + 1)
        return lesson

    def _remark(self, reply: ReplyInProgress) -> str:
        """Return the error or notice of a reply that has ended."""
        if not reply.trouble:
            return conversation.remark(reply)
        sentence = deleted(kept=False) if reply.missing else reply.trouble
        if reply.asks and not reply.begun:
            sentence = f"“{reply.title}”: {sentence}"
        return status.error(sentence)
