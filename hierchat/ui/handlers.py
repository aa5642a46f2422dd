"""Handlers that only show or keep: opening, naming, deleting, searching, choosing a model, Stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gradio as gr

from hierchat.ui import sampling, status, turns
from hierchat.ui.layout import Parts
from hierchat.ui.sessions import Session, Sessions
from hierchat.ui.views import Update, Views

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

LOCAL_USER = "local"
_PATIENCE_SECONDS = 5.0


class Handlers:
    """What each control does. The owner comes from the login, never from a component."""

    def __init__(self, service: ChatService, parts: Parts) -> None:
        self._service = service
        self._parts = parts
        self._sessions = Sessions()
        self.views = Views(service, parts)

    def who(self, request: gr.Request) -> tuple[Session, int]:
        """The page that asks and the user behind it."""
        user = self._service.store.ensure_user(request.username or LOCAL_USER)
        return self._sessions.of(request.session_hash), user

    def load(self, request: gr.Request) -> Update:
        """A page opens: the conversation in its address, if this user has it."""
        session, user = self.who(request)
        wanted = str(request.query_params.get("c", ""))
        mine = {c.id for c in self._service.store.conversations(user, limit=1_000_000)}
        session.conversation = int(wanted) if wanted.isdecimal() and int(wanted) in mine else None
        host = self._service.host
        name = host.status.name or (host.names[0] if host.names else "")
        update = {
            **self.views.chats(session, user, ""),
            **self.views.conversation(session, user),
            **self.poll(),
        }
        if name in host.names:
            update |= {self._parts.model: name} | self._defaults(name)
        return update

    def unload(self, request: gr.Request) -> None:
        """The page is gone."""
        self._sessions.close(request.session_hash)

    def new(self, query: str, request: gr.Request) -> Update:
        """An empty page; a conversation is stored with its first message."""
        session, user = self.who(request)
        session.conversation = None
        return {
            **self.views.conversation(session, user),
            **self.views.chats(session, user, query),
            self._parts.live: "",
        }

    def open(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A conversation from the list."""
        session, user = self.who(request)
        before = session.conversation
        session.conversation = int(event._data["id"])
        try:
            shown = self.views.conversation(session, user)
        except Exception as error:
            session.conversation = before
            return {self._parts.live: status.error(turns.said(error))}
        return {**shown, **self.views.chats(session, user, query), self._parts.live: ""}

    def rename(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A new title."""
        session, user = self.who(request)
        try:
            self._service.store.rename_conversation(user, int(event._data["id"]), str(event._data["text"]))
        except Exception as error:
            return {self._parts.live: status.error(turns.said(error))}
        return {**self.views.chats(session, user, query), **self.views.heading(session, user)}

    def delete(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """A conversation and all that was drafted from it; confirmed in the browser."""
        session, user = self.who(request)
        gone = int(event._data["id"])
        if session.conversation == gone and session.stop is not None:
            session.stop.set()
            until = time.monotonic() + _PATIENCE_SECONDS
            while session.stop is not None and time.monotonic() < until:
                time.sleep(0.02)
        try:
            self._service.store.delete_conversation(user, gone)
        except Exception as error:
            return {self._parts.live: status.error(turns.said(error))}
        update = self.views.chats(session, user, query)
        if session.conversation == gone:
            session.conversation = None
            update = {**self.views.conversation(session, user), **self.views.chats(session, user, query)}
        return update

    def search(self, query: str, request: gr.Request) -> Update:
        """The conversations that hold these words."""
        session, user = self.who(request)
        return self.views.chats(session, user, query)

    def branch(self, event: gr.EventData, request: gr.Request) -> Update:
        """Another version of a question or a reply."""
        session, user = self.who(request)
        if session.stop is not None:
            return {self._parts.live: gr.skip()}
        self._service.store.select_branch(user, int(event._data["id"]))
        return self.views.conversation(session, user)

    def sources(self, event: gr.EventData, request: gr.Request) -> Update:
        """A reply's tokens by source, or its text again."""
        session, user = self.who(request)
        if session.stop is not None:
            return {self._parts.live: gr.skip()}
        session.marked ^= {int(event._data["id"])}
        return self.views.conversation(session, user)

    def stop(self, request: gr.Request) -> Update:
        """Stop the reply in progress. Sets an event and returns: the reply's own handler draws the end."""
        session, _ = self.who(request)
        if session.stop is None:  # the reply has just ended, or its page was reloaded
            return self.views.busy(False)
        session.stop.set()
        return {self._parts.live: gr.skip()}

    def compare(self, on: bool, request: gr.Request) -> Update:
        """The switch; turned off, the conversation comes back."""
        box = gr.update(placeholder="Message both…" if on else "Message…")
        return {self._parts.box: box} | ({} if on else self.back(request))

    def back(self, request: gr.Request) -> Update:
        """From the columns to the conversation."""
        session, user = self.who(request)
        if session.stop is not None:
            return {self._parts.live: gr.skip()}
        return self.views.conversation(session, user)

    def choose(self, name: str) -> Update:
        """Another model: it loads in the background, with its own sampling settings."""
        now = self._service.host.status
        try:
            # Gradio 6.31 reports one choice in a dropdown twice.
            if now.name != name or now.phase in ("none", "failed"):
                self._service.host.start(name)
        except Exception as error:
            return {self._parts.live: status.error(turns.said(error))}
        return {**self._defaults(name), **self.poll(), self._parts.timer: gr.Timer(active=True)}

    def poll(self) -> Update:
        """How far the model is; the timer rests once there is nothing more to report."""
        now = self._service.host.status
        done = now.phase in ("ready", "failed", "none")
        update = {
            self._parts.host: status.host_line(now),
            self._parts.proof: status.model_proof(now),
            **self.views.plan(),
            self._parts.timer: gr.Timer(active=not done),
        }
        if now.phase == "ready" and now.message and now.name in self._service.host.names:
            update[self._parts.model] = now.name  # another one was asked for and did not come
        return update

    def _defaults(self, name: str) -> Update:
        values = sampling.values_of(self._service.host.settings(name))
        return dict(zip(self._parts.sampling, values, strict=True))
