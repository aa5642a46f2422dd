"""Handlers that put conversations in order: name, pin, archive, delete and take back, fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later
from hierchat.page import sidebar, status
from hierchat.page.components import Components
from hierchat.page.page_sessions import PAGE, Session
from hierchat.page.panels.panel import SessionOf
from hierchat.page.views import Update, Views
from hierchat.store import NotFound

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService


"""How long a deletion can be taken back."""
_TOO_LATE = later("That chat was deleted for good. It cannot be brought back.")
_FORKED = later("A copy of the chat up to that reply. The other one stays as it was.")

_WRITING = later(
    "A reply is still being written in this chat. Edit this one when it has ended, or stop it first."
)


class OrganisingHandlers:
    """Handle the menu of a chat, its tags, and replies that the user edits."""

    def __init__(self, service: ChatService, parts: Components, views: Views, session_of: SessionOf) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._session_of = session_of

    def rename(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Give a chat a new title."""
        session, user = self._session_of(request)
        self._service.chats.rename(user, int(event._data["id"]), str(event._data["text"]))
        return self._views.chats(session, user, query) | self._views.heading(session, user)

    def pin(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Put a chat at the top of the list, or back to its date."""
        session, user = self._session_of(request)
        self._service.chats.pin(user, int(event._data["id"]), bool(event._data["on"]))
        return self._views.chats(session, user, query)

    def archive(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Archive a chat, or put it back into the list."""
        session, user = self._session_of(request)
        self._service.chats.archive(user, int(event._data["id"]), bool(event._data["on"]))
        return self._views.chats(session, user, query)

    def show_archived(self, query: str, request: gr.Request) -> Update:
        """Go from the list to the archived conversations, or back."""
        session, user = self._session_of(request)
        session.archived, session.listed = not session.archived, PAGE
        return self._views.chats(session, user, query)

    def delete(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Delete a chat. For some seconds this can be taken back."""
        session, user = self._session_of(request)
        gone = int(event._data["id"])
        if (deleted := self._service.chats.delete(user, gone)) is not None:
            session.undo = sidebar.undo_line(gone, deleted.title or _(sidebar.UNTITLED), deleted.seconds)
        session.deleted_open = session.conversation == gone
        session.gone_from(gone)
        if session.deleted_open:
            return self._all(session, user, query)
        return self._views.chats(session, user, query)

    def restore(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Bring a deleted chat back, and on the screen if it was there."""
        session, user = self._session_of(request)
        wanted = int(event._data["id"])
        try:
            self._service.chats.restore(user, wanted)
        except NotFound:
            session.undo = ""
            return self._views.chats(session, user, query) | self._views.tell(
                session, user, status.error(_(_TOO_LATE))
            )
        session.undo = ""
        if session.deleted_open and session.conversation is None:
            session.conversation = wanted
            return self._all(session, user, query)
        return self._views.chats(session, user, query)

    def fork(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Copy a chat up to a reply, to go on from there."""
        session, user = self._session_of(request)
        if self._views.now(session, user) is not None:
            return self._views.tell(session, user, status.notice(_(status.LATER)))
        session.leave()
        session.conversation = self._service.chats.fork(user, int(event._data["id"]))
        session.archived = False
        return self._all(session, user, query) | self._views.tell(session, user, status.notice(_(_FORKED)))

    def _all(self, session: Session, user: int, query: str) -> Update:
        return self._views.conversation(session, user) | self._views.chats(session, user, query)

    def wire(self, every: list[Any], quiet: dict[str, Any]) -> None:
        """Join them to their parts; `every`: what an update may draw."""
        p = self._parts
        p.bus.hc_tags(self.tags, p.query, every, **quiet)
        p.bus.hc_titled(self.titled, p.query, every, **quiet)
        p.bus.hc_edit_reply(self.edit_reply, p.query, every, **quiet)

    def tags(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Replace a chat's tags."""
        session, user = self._session_of(request)
        given = event._data["tags"]
        names = [str(name) for name in given] if isinstance(given, list) else []
        self._service.chats.set_tags(user, int(event._data["id"]), names)
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
        """Store the user's version of a reply beside it; the chat goes on from there."""
        session, user = self._session_of(request)
        if self._views.now(session, user) is not None:
            return self._views.tell(session, user, status.notice(_(_WRITING)))
        message, text = int(event._data["id"]), str(event._data["text"])
        self._service.chats.edit_reply(user, session.conversation, message, text)
        return self._views.conversation(session, user) | self._views.chats(session, user, query)
