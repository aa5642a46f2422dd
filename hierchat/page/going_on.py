"""Replies that go on when their page is closed, and pages that notice what another page of the same user changed."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import gradio as gr

from hierchat.page.components import Components
from hierchat.page.guard import SessionOf
from hierchat.page.page_sessions import Session, Sessions, Stale
from hierchat.page.views import Update, Views, cue
from hierchat.store import NotFound, StoreError

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

GRACE_SECONDS = 5.0
"""A page that is loaded again is gone for a moment: so long, its replies are not stopped."""


class GoingOn:
    """The handlers, and what happens when a page is gone."""

    def __init__(
        self, service: ChatService, parts: Components, views: Views, sessions: Sessions, session_of: SessionOf
    ) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._sessions = sessions
        self._session_of = session_of
        service.in_progress.pages = sessions

    def load(self) -> Update:
        """A page opens: from now on it asks for news."""
        return {self._parts.pulse: gr.Timer(active=True)}

    def pulse(self, request: gr.Request) -> Update:
        """Once a second: whether something changed elsewhere since this page was drawn. Mostly two numbers are
        compared, and that is all."""
        try:
            session, user = self._session_of(request)
        except (Stale, StoreError):
            return {self._parts.cue: cue("news", 0)}  # the page asks, and is told
        if (reply := self._views.now(session, user)) and reply not in session.following:
            return {self._parts.cue: cue("reply", reply.number)}
        count = self._service.changes.count(user)
        return {self._parts.cue: gr.skip() if session.list_seen == count else cue("news", count)}

    def watch(self, request: gr.Request) -> Update:
        """What changed elsewhere."""
        session, user = self._session_of(request)
        shown = session.conversation
        redrawn = self._service.changes.changed(user, shown) > session.thread_seen
        update = self._views.chats(session, user, session.query) | self._views.settings_news(session, user)
        if shown is not None and not self._views.exists(user, shown):
            return update | self._views.missing(session, user, kept=False)
        if redrawn:
            return update | self._views.conversation(session, user)
        return (
            update
            | self._views.heading(session, user)
            | self._views.live(session, user)
            | self._views.busy(session, user)
            | self._views.tray(session, user)
        )

    def seen(self, session: Session, user: int) -> None:
        """The open conversation is seen now: its mark in the list goes, on every page."""
        if session.conversation is None:
            return
        with suppress(NotFound, StoreError):  # the next time it is opened, then
            if self._service.store.chats.get(user, session.conversation).unread:
                self._service.store.chats.mark_unread(user, session.conversation, False)
                self._service.changes.notify(user)

    def left(self, session: Session | None) -> None:
        """A page was closed. Was it the user's last one, and is that what they want, their replies stop."""
        if session is None or (user := session.user) is None:
            return
        if self._sessions.any_of(user) or not self._service.in_progress.all_of(user):
            return
        if not self._service.store.users.keeps_writing(user):
            timer = threading.Timer(GRACE_SECONDS, self._stop, [user])
            timer.daemon = True
            timer.start()

    def _stop(self, user: int) -> None:
        if not self._sessions.any_of(user):
            self._service.in_progress.stop(user)
