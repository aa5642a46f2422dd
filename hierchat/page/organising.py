"""Handlers that put conversations in order: name, pin, archive, delete and take back, fork."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later
from hierchat.page import sidebar, status
from hierchat.page.components import Components
from hierchat.page.guard import SessionOf
from hierchat.page.page_sessions import PAGE, Session
from hierchat.page.views import Update, Views
from hierchat.store import NotFound, StoreError

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService


_LONGEST_TITLE = 200
UNDO_SECONDS = 10.0
"""How long a deletion can be taken back."""
_TOO_LATE = later("That chat was deleted for good. It cannot be brought back.")
_FORKED = later("A copy of the chat up to that reply. The other one stays as it was.")

log = logging.getLogger(__name__)


class OrganisingHandlers:
    """The handlers."""

    def __init__(self, service: ChatService, parts: Components, views: Views, session_of: SessionOf) -> None:
        self._store, self._changes = service.store, service.changes
        self._in_progress = service.in_progress
        self._parts = parts
        self._views = views
        self._session_of = session_of
        self._hidden: dict[int, tuple[int, threading.Timer]] = {}
        """Conversation that can be taken back -> its user, and what deletes it in the end."""
        self._lock = threading.Lock()

    def rename(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A new title."""
        session, user = self._session_of(request)
        self._store.chats.rename(user, int(event._data["id"]), str(event._data["text"])[:_LONGEST_TITLE])
        self._changes.notify(user)
        return self._views.chats(session, user, query) | self._views.heading(session, user)

    def pin(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """To the top of the list, or back to its date."""
        session, user = self._session_of(request)
        self._store.chats.pin(user, int(event._data["id"]), bool(event._data["on"]))
        self._changes.notify(user)
        return self._views.chats(session, user, query)

    def archive(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Out of the list, or back into it."""
        session, user = self._session_of(request)
        self._store.chats.archive(user, int(event._data["id"]), bool(event._data["on"]))
        self._changes.notify(user)
        return self._views.chats(session, user, query)

    def show_archived(self, query: str, request: gr.Request) -> Update:
        """From the list to the archived conversations, or back."""
        session, user = self._session_of(request)
        session.archived, session.listed = not session.archived, PAGE
        return self._views.chats(session, user, query)

    def delete(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A conversation and all that was drafted from it. For some seconds this can be taken back."""
        session, user = self._session_of(request)
        gone = int(event._data["id"])
        self._in_progress.end(user, gone)
        with suppress(NotFound):  # deleted elsewhere: that was wanted
            title = self._views.title_of(user, gone)
            self._delete_for_good(user)
            self._store.chats.hide(user, gone)
            self._delete_later(user, gone)
            session.undo = sidebar.undo_line(gone, title, UNDO_SECONDS)
            self._changes.notify(user, gone)
        session.deleted_open = session.conversation == gone
        session.gone_from(gone)
        if session.deleted_open:
            return self._all(session, user, query)
        return self._views.chats(session, user, query)

    def restore(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Undo: the conversation is back, and on the screen if it was there."""
        session, user = self._session_of(request)
        wanted = int(event._data["id"])
        try:
            self._store.chats.restore(user, wanted)
        except NotFound:
            session.undo = ""
            return self._views.chats(session, user, query) | self._views.tell(
                session, user, status.error(_(_TOO_LATE))
            )
        session.undo = ""
        self._changes.notify(user, wanted)
        with self._lock:
            if (held := self._hidden.pop(wanted, None)) is not None:
                held[1].cancel()
        if session.deleted_open and session.conversation is None:
            session.conversation = wanted
            return self._all(session, user, query)
        return self._views.chats(session, user, query)

    def fork(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """The conversation up to a reply, once more, to go on from there."""
        session, user = self._session_of(request)
        if self._views.now(session, user) is not None:
            return self._views.tell(session, user, status.notice(_(status.LATER)))
        session.leave()
        session.conversation = self._store.chats.fork(user, int(event._data["id"]))
        session.archived = False
        self._changes.notify(user)
        return self._all(session, user, query) | self._views.tell(session, user, status.notice(_(_FORKED)))

    def _all(self, session: Session, user: int, query: str) -> Update:
        return self._views.conversation(session, user) | self._views.chats(session, user, query)

    def _delete_later(self, user: int, conversation: int) -> None:
        timer = threading.Timer(UNDO_SECONDS, self._delete_now, [conversation])
        timer.daemon = True
        with self._lock:
            self._hidden[conversation] = (user, timer)
        timer.start()

    def _delete_for_good(self, user: int) -> None:
        """Whoever deletes again does not take back what was deleted before."""
        with self._lock:
            before = [id for id, (whose, _) in self._hidden.items() if whose == user]
            for id in before:
                self._hidden[id][1].cancel()
        for id in before:  # rewriting the file takes its time
            threading.Thread(target=self._delete_now, args=[id], name="delete", daemon=True).start()

    def _delete_now(self, conversation: int) -> None:
        with self._lock:
            if self._hidden.pop(conversation, None) is None:  # taken back
                return
        try:
            self._store.chats.delete_hidden([conversation])
        except StoreError as error:
            log.warning("A deleted chat stays in the file, out of sight, until hierchat ends: %s", error)


# Handlers that name: tags, titles that the model wrote. And a reply that the user edits.


_WRITING = later(
    "A reply is still being written in this chat. Edit this one when it has ended, or stop it first."
)


class NamingHandlers:
    """The handlers."""

    def __init__(self, service: ChatService, parts: Components, views: Views, session_of: SessionOf) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._session_of = session_of

    def wire(self, every: list[Any], quiet: dict[str, Any]) -> None:
        """Join them to their parts; `every`: what an update may draw."""
        p = self._parts
        p.bus.hc_tags(self.tags, p.query, every, **quiet)
        p.bus.hc_titled(self.titled, p.query, every, **quiet)
        p.bus.hc_edit_reply(self.edit_reply, p.query, every, **quiet)

    def tags(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A conversation's tags, in place of those that it had."""
        session, user = self._session_of(request)
        given = event._data["tags"]
        names = [str(name) for name in given] if isinstance(given, list) else []
        self._service.store.chats.set_tags(user, int(event._data["id"]), names)
        self._service.changes.notify(user)
        return self._views.chats(session, user, query)

    def titled(self, query: str, request: gr.Request) -> Update:
        """The page asks, some time after a reply, whether a title has come meanwhile."""
        session, user = self._session_of(request)
        came = self._service.titles.came(user)
        if came == session.titled:
            return {self._parts.live: gr.skip()}
        session.titled = came
        self._service.changes.notify(user)
        return self._views.chats(session, user, query) | self._views.heading(session, user)

    def edit_reply(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """The user's version of a reply, beside it; the chat goes on from there."""
        session, user = self._session_of(request)
        if self._views.now(session, user) is not None:
            return self._views.tell(session, user, status.notice(_(_WRITING)))
        self._service.store.messages.edit_reply(user, int(event._data["id"]), str(event._data["text"]))
        self._service.changes.notify(user, session.conversation)
        return self._views.conversation(session, user) | self._views.chats(session, user, query)
