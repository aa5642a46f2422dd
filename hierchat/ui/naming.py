"""Handlers that name: tags, titles that the model wrote. And a reply that the user edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later
from hierchat.ui import status
from hierchat.ui.guard import Who
from hierchat.ui.layout import Parts
from hierchat.ui.views import Update, Views

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

_WRITING = later(
    "A reply is still being written in this chat. Edit this one when it has ended, or stop it first."
)


class NamingHandlers:
    """The handlers."""

    def __init__(self, service: ChatService, parts: Parts, views: Views, who: Who) -> None:
        self._service = service
        self._parts = parts
        self._views = views
        self._who = who

    def wire(self, every: list[Any], quiet: dict[str, Any]) -> None:
        """Join them to their parts; `every`: what an update may draw."""
        p = self._parts
        p.bus.hc_tags(self.tags, p.query, every, **quiet)
        p.bus.hc_titled(self.titled, p.query, every, **quiet)
        p.bus.hc_edit_reply(self.edit_reply, p.query, every, **quiet)

    def tags(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A conversation's tags, in place of those that it had."""
        session, user = self._who(request)
        given = event._data["tags"]
        names = [str(name) for name in given] if isinstance(given, list) else []
        self._service.store.set_tags(user, int(event._data["id"]), names)
        self._service.news.tell(user)
        return self._views.chats(session, user, query)

    def titled(self, query: str, request: gr.Request) -> Update:
        """The page asks, some time after a reply, whether a title has come meanwhile."""
        session, user = self._who(request)
        came = self._service.titles.came(user)
        if came == session.titled:
            return {self._parts.live: gr.skip()}
        session.titled = came
        self._service.news.tell(user)
        return self._views.chats(session, user, query) | self._views.heading(session, user)

    def edit_reply(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """The user's version of a reply, beside it; the chat goes on from there."""
        session, user = self._who(request)
        if self._views.now(session, user) is not None:
            return self._views.tell(session, user, status.notice(_(_WRITING)))
        self._service.store.edit_reply(user, int(event._data["id"]), str(event._data["text"]))
        self._service.news.tell(user, session.conversation)
        return self._views.conversation(session, user) | self._views.chats(session, user, query)
