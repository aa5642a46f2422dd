"""Handlers that only show or keep: opening, searching, choosing a model, Stop.

What goes wrong in them, guard.py says on the page.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.language import _, later
from hierchat.page import chat_settings, comparison_view, page_sessions, status
from hierchat.page.components import MORE, Components, model_choices
from hierchat.page.event_data import whole
from hierchat.page.page_sessions import (
    DRAWN,
    PAGE,
    UNKNOWN,
    Session,
    Sessions,
    Stale,
    forget_page,
    forget_stragglers,
)
from hierchat.page.panels.models_view import tiny_line
from hierchat.page.panels.panel import Panel
from hierchat.page.views import GONE, Update, Views, cue
from hierchat.store import LOCAL_USER, StoreError

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

GRACE_SECONDS = 5.0
"""A page that is loaded again is gone for a moment: so long, its replies are not stopped."""
_DIGITS = 18
"""Of a number that SQLite can hold."""
_NOT_WHOLE = later(
    " Bytes of them may be left in the file while another program reads it or the disk is full: run `hierchat forget` "
    "when hierchat has ended."
)


class Handlers:
    """Handle the controls that show or keep. The owner comes from the login, never from a component."""

    def __init__(
        self, service: ChatService, app: gr.Blocks, parts: Components, panels: Sequence[Panel]
    ) -> None:
        self._service = service
        self._app = app
        self._parts = parts
        self.sessions = Sessions()
        self._users: dict[str, int] = {}
        self._nothing: Update = {parts.live: gr.skip()}
        self.views = Views(service, parts, panels)

    def session_of(self, request: gr.Request) -> tuple[Session, int]:
        """The page that asks and the user behind it."""
        session = self.sessions.of(request.session_hash)
        session.user = self._user(request.username or LOCAL_USER)
        return session, session.user

    def _user(self, name: str) -> int:
        # Known ones without the store: Stop works while the file is locked.
        if name not in self._users:
            self._users[name] = self._service.users.ensure(name)
        return self._users[name]

    def load(self, request: gr.Request) -> Update:
        """A page opens: the conversation in its address, if this user has it, or the panel."""
        self.sessions.open(request.session_hash)
        forget_stragglers(self._app, self.sessions)
        self._users.pop(request.username or LOCAL_USER, None)  # may have been forgotten since
        session, user = self.session_of(request)
        wanted = str(request.query_params.get("c", ""))
        number = int(wanted) if wanted.isdecimal() and len(wanted) <= _DIGITS else 0
        session.conversation = number if number and self.views.exists(user, number) else None
        self._seen(session, user)
        panel = str(request.query_params.get("view", ""))
        session.panel = panel if self.views.has_panel(panel) else ""
        update = {
            **self.views.chats(session, user, ""),
            **self.views.conversation(session, user),
            **self.poll(),
            self._parts.pulse: gr.Timer(active=True),
        }
        if (note := self._service.data.notice) and self._service.users.is_owner(user):
            update |= self.views.tell(session, user, status.notice(note))
        if wanted and session.conversation is None:
            update |= self.views.tell(
                session, user, status.error(_("There is no chat at this address. It may have been deleted."))
            )
        return update

    def unload(self, request: gr.Request) -> None:
        """Forget a page that was closed."""
        closed = self.sessions.close(request.session_hash)
        forget_page(self._app, request.session_hash)
        if closed is not None:
            closed.conversation = None
            page_sessions.left(self._service, closed)
        self._left(closed)

    def incognito(self, request: gr.Request) -> Update:
        """Switch whether the next new chat is incognito."""
        session, user = self.session_of(request)
        session.incognito = not session.incognito
        return self.views.heading(session, user)

    def keep_incognito(self, query: str, request: gr.Request) -> Update:
        """The open chat is kept after all."""
        session, user = self.session_of(request)
        if (kept := session.incognito_chat) is not None:
            self._service.chats.keep_incognito(user, kept)
            session.incognito_chat = None
        return self.views.heading(session, user) | self.views.chats(session, user, query)

    def new(self, query: str, request: gr.Request) -> Update:
        """Show an empty page; a conversation is stored with its first message."""
        session, user = self.session_of(request)
        session.leave()
        session.conversation, session.settings_of = None, UNKNOWN
        return self.views.conversation(session, user) | self.views.chats(session, user, query)

    def open(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Open a conversation from the list; with a hit of the search, the branch that holds it."""
        session, user = self.session_of(request)
        if _overtaken(session, event):
            return self._nothing
        wanted, hit = int(event._data["id"]), str(event._data.get("text", ""))
        # It may have been deleted elsewhere: stay where we are.
        self._service.chats.get(user, wanted)
        session.leave()
        session.conversation = wanted
        self._seen(session, user)
        if hit and self.views.now(session, user) is None:
            path = self._path(user, wanted)
            if whole(hit) not in path:
                self._service.chats.select_branch(user, wanted, whole(hit))
                path = self._path(user, wanted)
            session.draw_around(whole(hit), path)
        return self.views.conversation(session, user) | self.views.chats(session, user, query)

    def _path(self, user: int, conversation: int) -> list[int]:
        return [message.id for message in self._service.chats.messages(user, conversation)]

    def panel(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """Open a panel in place of the conversation, whose reply goes on."""
        if _overtaken(self.session_of(request)[0], event):
            return self._nothing
        return self._to_panel(str(event._data["text"]), query, request)

    def _to_panel(self, wanted: str, query: str, request: gr.Request) -> Update:
        session, user = self.session_of(request)
        session.leave()
        session.conversation, session.panel = None, wanted if self.views.has_panel(wanted) else ""
        update = self.views.conversation(session, user) | self.views.chats(session, user, query)
        return update | ({self._parts.timer: gr.Timer(active=True)} if self._service.models.busy else {})

    def search(self, query: str, request: gr.Request) -> Update:
        """List the conversations that hold these words."""
        session, user = self.session_of(request)
        session.listed = PAGE
        return self.views.chats(session, user, query)

    def more(self, query: str, request: gr.Request) -> Update:
        """List more conversations: the end of the list comes near."""
        session, user = self.session_of(request)
        session.listed += PAGE
        return self.views.chats(session, user, query)

    def go(self, query: str, event: gr.EventData, request: gr.Request) -> Update:
        """The browser's Back and Forward: the conversation that was open then, or the empty page for 0."""
        session, user = self.session_of(request)
        if _overtaken(session, event):
            return self._nothing
        wanted = int(event._data["id"])
        session.leave()
        there = bool(wanted) and self.views.exists(user, wanted)
        session.conversation = wanted if there else None
        self._seen(session, user)
        update = self.views.conversation(session, user) | self.views.chats(session, user, query)
        if wanted and not there:
            # Not the value of any other empty page, so that the script sees a change and mends the address.
            update[self._parts.bus] = f"{GONE}{wanted}"
            gone = status.notice(_("The chat that was open here has been deleted."))
            update[self._parts.live] = status.closable(gone)
        return update

    def forget(self, query: str, request: gr.Request) -> Update:
        """Delete all that is stored of this user, and say what went."""
        session, user = self.session_of(request)
        session.conversation = None  # what is stopped before its turn goes, too
        chats, messages = self._service.users.counts(user)
        whole = self._service.forget_user(user)
        self._users.pop(request.username or LOCAL_USER, None)
        session.undo, session.marked = "", set()
        self._service.changes.notify(user)
        user = self.session_of(request)[1]
        self._service.changes.notify(user)
        gone = _(
            "Deleted for good: {chats:,} chats with {messages:,} messages, and all that was learned from them."
        ).format(chats=chats, messages=messages)
        stays = _(" Texts of your own, models and backups stay.") + ("" if whole else _(_NOT_WHOLE))
        update = self.views.conversation(session, user) | self.views.chats(session, user, query)
        return update | self.views.tell(session, user, status.notice(gone + stays))

    def earlier(self, request: gr.Request) -> Update:
        """Draw more of the beginning of a long conversation."""
        session, user = self.session_of(request)
        session.drawn *= 2
        return self.views.conversation(session, user)

    def latest(self, request: gr.Request) -> Update:
        """Draw the end of a long conversation."""
        session, user = self.session_of(request)
        session.drawn, session.until = DRAWN, None
        return self.views.conversation(session, user)

    def branch(self, event: gr.EventData, request: gr.Request) -> Update:
        """Show another version of a question or a reply."""
        session, user = self.session_of(request)
        if self.views.now(session, user) is None:
            self._service.chats.select_branch(user, session.conversation, int(event._data["id"]))
            session.until = None
        return self._drawn(session, user)

    def sources(self, event: gr.EventData, request: gr.Request) -> Update:
        """Show a reply's tokens by source, or its text again."""
        session, user = self.session_of(request)
        if self.views.now(session, user) is None:
            session.marked ^= {int(event._data["id"])}
        return self._drawn(session, user)

    def dismiss(self, request: gr.Request) -> Update:
        """Close what the line above the box says."""
        session, user = self.session_of(request)
        session.remark = session.note = session.about = ""
        return self.views.live(session, user)

    def load_for_sources(self, query: str, event: gr.EventData, request: gr.Request, *values: Any) -> Update:
        """The model that alone can show where a reply's words came from."""
        return self.choose(str(event._data["text"]), query, request, *values)

    def loaded(self, request: gr.Request) -> Update:
        """After each look at a model that loads: when it is there, its replies show where their words came from."""
        session, user = self.session_of(request)
        now = self._service.model_status
        if not session.marked or session.panel or now.phase != "ready" or now.name == session.sources_by:
            return self._nothing
        if session.conversation is None or self.views.now(session, user) is not None:
            return self._nothing
        return {self._parts.thread: self.views.thread(session, user)}

    def stop(self, request: gr.Request) -> Update:
        """Stop the reply on the screen. Sets an event and returns: whoever follows the reply draws the end."""
        session, user = self.session_of(request)
        if (reply := self.views.now(session, user)) is not None:
            reply.stop.set()
        else:  # the reply has just ended
            return self.views.busy(session, user)
        return {self._parts.live: gr.skip()}

    def settle(self, box: str, request: gr.Request) -> Update:
        """After a reply: what was sent and not asked in the end goes back, before what is in the box by now. And the
        line once more: of two replies that end at once, the page may have heard of the earlier one last."""
        session, user = self.session_of(request)
        update = (
            self.views.live(session, user) | self.views.busy(session, user) | self.views.tray(session, user)
        )
        text, session.unsent = session.unsent, ""
        if text:
            update[self._parts.box] = f"{text}\n\n{box}" if box.strip() else text
        return update

    def compare(self, on: bool, request: gr.Request) -> Update:
        """The switch; turned off, the conversation comes back."""
        box = gr.update(placeholder=_("Message both…") if on else _("Message…"))
        return {self._parts.box: box} | ({} if on else self.back(request))

    def back(self, request: gr.Request) -> Update:
        """Go from the columns of a comparison back to the conversation."""
        session, user = self.session_of(request)
        session.leave()
        return self.views.conversation(session, user)

    def choose(self, name: str, query: str, request: gr.Request, *values: Any) -> Update:
        """Load another model of those that are here, in the background. Sampling in which nothing was set follows
        the model. Or the page with all others."""
        now = self._service.model_status
        if name == MORE:
            present = gr.update(value=now.name or None)
            return self._to_panel("models", query, request) | {self._parts.model: present}
        sampled = self._following(name, list(values))
        # Gradio 6.31 reports one choice in a dropdown twice.
        if now.name != name or now.phase in ("none", "failed"):
            self._service.models.load(name)
        return {**sampled, **self.poll(), self._parts.timer: gr.Timer(active=True)}

    def poll(self) -> Update:
        """Draw how far the model is; the timer rests once there is nothing more to report."""
        now, names = self._service.model_status, self._service.models.names
        done = now.phase in ("ready", "failed", "none") and not self._service.models.busy
        return {
            self._parts.host: status.slot_line(now),
            self._parts.timer: gr.Timer(active=not done),
            self._parts.tiny: tiny_line(self._service.models.better()),
            # It may have been chosen elsewhere, or another one that was asked for did not come.
            self._parts.model: gr.update(**self._picked(names)),
            self._parts.pair: comparison_view.form(names),
            self._parts.settings.thinks: chat_settings.offered(self._service.thinks),
        }

    def picker(self) -> Mapping[str, Any]:
        """The list of models as it is now: properties of its component."""
        return self._picked(self._service.models.names)

    def _picked(self, names: Sequence[str]) -> Mapping[str, Any]:
        now = self._service.model_status
        there = now.name in names and now.phase != "none"
        return {"choices": model_choices(names), "value": now.name if there else None}

    def pulse(self, request: gr.Request) -> Update:
        """Once a second: whether something changed elsewhere since this page was drawn. Mostly two numbers are
        compared, and that is all."""
        try:
            session, user = self.session_of(request)
        except (Stale, StoreError):
            return {self._parts.cue: cue("news", 0)}  # the page asks, and is told
        if (reply := self.views.now(session, user)) and reply not in session.following:
            return {self._parts.cue: cue("reply", reply.number)}
        count = self._service.changes.count(user)
        return {self._parts.cue: gr.skip() if session.list_seen == count else cue("news", count)}

    def watch(self, request: gr.Request) -> Update:
        """Draw what changed elsewhere."""
        session, user = self.session_of(request)
        shown = session.conversation
        redrawn = self._service.changes.changed(user, shown) > session.thread_seen
        update = self.views.chats(session, user, session.query) | self.views.settings_news(session, user)
        if shown is not None and not self.views.exists(user, shown):
            return update | self.views.missing(session, user, kept=False)
        if redrawn:
            return update | self.views.conversation(session, user)
        return (
            update
            | self.views.heading(session, user)
            | self.views.live(session, user)
            | self.views.busy(session, user)
            | self.views.tray(session, user)
        )

    def _seen(self, session: Session, user: int) -> None:
        """The open conversation is seen now: its mark in the list goes, on every page."""
        if session.conversation is None:
            return
        self._service.chats.mark_read(user, session.conversation)

    def _left(self, session: Session | None) -> None:
        """A page was closed. Was it the user's last one, and is that what they want, their replies stop."""
        if session is None or (user := session.user) is None:
            return
        if self.sessions.any_of(user) or not self._service.in_progress.all_of(user):
            return
        if not self._service.users.keeps_writing(user):
            timer = threading.Timer(GRACE_SECONDS, self._stop_if_gone, [user])
            timer.daemon = True
            timer.start()

    def _stop_if_gone(self, user: int) -> None:
        if not self.sessions.any_of(user):
            self._service.in_progress.stop(user)

    def _drawn(self, session: Session, user: int) -> Update:
        if self.views.now(session, user) is not None:
            self.views.tell(session, user, status.notice(_(status.LATER)))
        return self.views.conversation(session, user)

    def _following(self, name: str, values: list[Any]) -> Update:
        """The sampling of the model of that name, unless that of the one before was changed."""
        controls = self._parts.settings.sampling
        before, after = (self._service.chats.model_settings(model).sampling for model in ("", name))
        with suppress(chat_settings.InvalidSettings):
            if chat_settings.read(values).sampling == before:
                return dict(zip(controls, chat_settings.values_of(after), strict=True))
        return {}


def _overtaken(session: Session, event: gr.EventData) -> bool:
    """Return whether a later click on a chat or a view has arrived before this one."""
    return session.overtaken(int(event._data.get("step", 0)))
