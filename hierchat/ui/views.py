"""Updates of the page as dictionaries from component to value: what every handler answers with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from hierchat.chat.frames import Arm, Frame
from hierchat.ui import messages, sidebar, versus
from hierchat.ui.layout import OFF, Parts, heading
from hierchat.ui.plan import plan_picture
from hierchat.ui.sessions import Session

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

Update = dict[Any, Any]
Stage = Literal["empty", "chat", "versus"]


def _shown(visible: bool) -> bool | Literal["hidden"]:
    return True if visible else "hidden"


class Views:
    """Draws the page's parts from the store."""

    def __init__(self, service: ChatService, parts: Parts) -> None:
        self._service = service
        self._parts = parts

    def stage(self, name: Stage) -> Update:
        """Which of the three things fills the middle of the page."""
        p = self._parts
        return {
            p.empty: gr.update(visible=_shown(name == "empty")),
            p.chat: gr.update(visible=_shown(name == "chat")),
            p.versus: gr.update(elem_classes=[] if name == "versus" else [OFF]),
        }

    def busy(self, running: bool) -> Update:
        """Send while idle, Stop while a reply is being written."""
        p = self._parts
        return {p.send: gr.update(visible=_shown(not running)), p.stop: gr.update(visible=_shown(running))}

    def chats(self, session: Session, user_id: int, query: str) -> Update:
        """The list of conversations and the line below it."""
        store = self._service.store
        found = store.conversations(user_id, query or None)
        return {
            self._parts.list: sidebar.conversation_list(found, session.conversation, date.today(), query),
            self._parts.footer: sidebar.footer(store.totals(user_id)),
        }

    def plan(self) -> Update:
        """The arrangement of draft models, as it is now."""
        return {self._parts.plan: plan_picture(self._service.plan())}

    def heading(self, session: Session, user_id: int) -> Update:
        """The title of the open conversation, and its id for the address."""
        title = self.title_of(user_id, session.conversation)
        return {self._parts.title: heading(title), self._parts.bus: str(session.conversation or "")}

    def title_of(self, user_id: int, conversation: int | None) -> str:
        """A conversation's title for the eye."""
        if conversation is None:
            return sidebar.UNTITLED
        every = self._service.store.conversations(user_id, limit=1_000_000)
        return next((c.title for c in every if c.id == conversation), "") or sidebar.UNTITLED

    def conversation(self, session: Session, user_id: int, stage: Stage | None = None) -> Update:
        """The open conversation as stored, under its title."""
        p = self._parts
        path = self._path(session, user_id)
        drawn = messages.history(self._service, user_id, path, session.marked)
        update = self.stage(stage or ("chat" if drawn else "empty"))
        update[p.chat] = gr.update(value=drawn, visible=_shown((stage or "chat") == "chat" and bool(drawn)))
        update[p.context] = context(session.context.get(session.conversation or 0, ""))
        return update | self.heading(session, user_id)

    def _path(self, session: Session, user_id: int) -> list[Any]:
        if session.conversation is None:
            return []
        return self._service.store.messages(user_id, session.conversation)

    def columns(self, arms: Mapping[Arm, Frame | None]) -> Update:
        """Both columns of a comparison."""
        update: Update = {}
        for arm, (text, figures) in self._parts.columns.items():
            update[text], update[figures] = versus.column(arms.get(arm))
        return update


def context(line: str) -> str:
    """The line about the context window as HTML."""
    return f'<div class="hc-context">{line}</div>'
