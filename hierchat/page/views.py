"""Updates of the page as dictionaries from component to value: what every handler answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr

from hierchat.chat.frames import Arm, Frame
from hierchat.chat.in_progress import ReplyInProgress
from hierchat.language import _
from hierchat.page import chat_settings, comparison_view, conversation, page_sessions, sidebar, status
from hierchat.page.components import OFF, Components, heading
from hierchat.page.conversation import files, thread
from hierchat.page.page_sessions import UNKNOWN, Session
from hierchat.page.panels.models_view import tiny_line
from hierchat.page.panels.panel import Panel, links
from hierchat.page.reply_text import GrowingReply
from hierchat.page.unsent import Attached, tray
from hierchat.store import NotFound
from hierchat.texts.attachments import fenced

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

Update = dict[Any, Any]
GONE = "gone "
"""Before the number of a conversation that is not there any more, in place of what is on the screen."""
Stage = str
""""empty", "chat", "versus", or the name of a panel."""


def _shown(visible: bool) -> bool | Literal["hidden"]:
    return True if visible else "hidden"


class Views:
    """Draws the page's parts from the store."""

    def __init__(self, service: ChatService, parts: Components, panels: Sequence[Panel]) -> None:
        self._service = service
        self._parts = parts
        self._panels = {panel.name: panel for panel in panels}

    def stage(self, name: Stage) -> Update:
        """Show what fills the middle of the page."""
        p = self._parts
        panels = {
            column: gr.update(elem_classes=["hc-panel"] if name == panel else ["hc-panel", OFF])
            for panel, column in p.panels.items()
        }
        return panels | {
            p.empty: gr.update(elem_classes=[] if name == "empty" else [OFF]),
            p.tiny: tiny_line(self._service.models.better()),
            p.chat: gr.update(elem_classes=[] if name == "chat" else [OFF]),
            p.versus: gr.update(elem_classes=[] if name == "versus" else [OFF]),
        }

    def now(self, session: Session, user_id: int) -> ReplyInProgress | None:
        """The reply in progress in the conversation on the screen, whichever page asked for it."""
        return self._service.in_progress.of(user_id, session.conversation)

    def busy(self, session: Session, user_id: int) -> Update:
        """Send while idle, Stop while a reply waits or is written in the chat on the screen."""
        p = self._parts
        running = self.now(session, user_id) is not None
        return {p.send: gr.update(visible=_shown(not running)), p.stop: gr.update(visible=_shown(running))}

    def live(self, session: Session, user_id: int) -> Update:
        """The line above the box: what the reply in progress does, or where another one is being written."""
        return {self._parts.live: self._live(session, user_id)}

    def tell(self, session: Session, user_id: int, sentence: str, about: str = "") -> Update:
        """Something for the same line, as HTML; it stays until it is closed, the next message, or another chat is open.
        `about`: what it is about, so that `settled` can take it away."""
        said = status.closable(sentence)
        session.about = about
        if (reply := self.now(session, user_id)) is None:
            session.remark = said
            return {self._parts.live: said}
        session.note = said
        return {self._parts.live: said + conversation.line(reply, self._service)}

    def settled(self, session: Session, user_id: int, about: str) -> Update:
        """Take away a remark about something that is true no more."""
        if session.about != about:
            return {}
        session.remark = session.note = session.about = ""
        return self.live(session, user_id)

    def _live(self, session: Session, user_id: int) -> str:
        if (reply := self.now(session, user_id)) is not None:
            return session.note + conversation.line(reply, self._service)
        if session.remark:
            return session.remark
        for other in self._service.in_progress.all_of(user_id):
            with suppress(NotFound):  # deleted elsewhere
                return status.waiting(
                    _("Still writing in “{title}”").format(
                        title=self.title_of(user_id, other.conversation_id)
                    )
                )
        return ""

    def chats(self, session: Session, user_id: int, query: str) -> Update:
        """The list of conversations and the lines below it."""
        session.query, session.list_seen = query, self._service.changes.count(user_id)
        found = self._service.chats.find(user_id, query, session.listed, archived=session.archived)
        session.archived = session.archived and found.archived > 0
        drawn = sidebar.conversation_list(
            found,
            session.conversation,
            date.today(),
            query,
            show_archived=session.archived and not query.strip(),
        )
        return {
            self._parts.list: sidebar.filters(found.tags, query) + drawn,
            self._parts.undo: session.undo,
            self._parts.footer: sidebar.footer(found.totals),
        }

    def heading(self, session: Session, user_id: int) -> Update:
        """The title of the open conversation, and its id for the address."""
        shown = {
            self._parts.links: links(list(self._panels.values()), session.panel),
            self._parts.bus: self.place(session),
        }
        if panel := self._panels.get(session.panel):
            return shown | {self._parts.title: heading(_(panel.title)), self._parts.incognito: ""}
        title = self.title_of(user_id, session.conversation)
        return shown | {self._parts.title: heading(title), self._parts.incognito: page_sessions.line(session)}

    def place(self, session: Session) -> str:
        """Return what is on the screen, for the address."""
        if session.panel in self._panels:
            return f"panel {session.panel}"
        # What leaves nothing stands in no address.
        place = "incognito " if session.conversation == session.incognito_chat is not None else ""
        return f"{place}{session.conversation or 0}"

    def latest(self, session: Session, user_id: int, update: Update) -> Update:
        """Return an update; where another conversation was opened while it was drawn, what is on the screen now."""
        drawn = update.get(self._parts.bus)
        if drawn is None or drawn == self.place(session) or str(drawn).startswith(GONE):
            return update
        return update | self.conversation(session, user_id) | self.chats(session, user_id, session.query)

    def title_of(self, user_id: int, conversation: int | None) -> str:
        """A conversation's title for the eye."""
        if conversation is None:
            return _(sidebar.UNTITLED)
        return self._service.chats.title(user_id, conversation) or _(sidebar.UNTITLED)

    def conversation(self, session: Session, user_id: int, stage: Stage | None = None) -> Update:
        """The open conversation: as stored, or as its reply in progress draws it."""
        page_sessions.left(self._service, session)
        session.thread_seen = self._service.changes.count(user_id)
        p, reply = self._parts, self.now(session, user_id)
        # A reply that this page does not follow yet: the script asks for it.
        fresh = reply is not None and reply not in session.following
        update: Update = {p.cue: cue("reply", reply.number) if reply and fresh else ""}
        if reply:
            self.window(session, reply)
        update |= {p.context: context(session.context.get(session.conversation or 0, ""))}
        update |= self.heading(session, user_id) | self.busy(session, user_id) | self.live(session, user_id)
        update |= self.tray(session, user_id)
        update |= self.settings(session, user_id)
        if panel := self._panels.get(session.panel):
            return update | self.stage(panel.name) | panel.show(user_id)
        if reply is None:
            drawn = self.thread(session, user_id)
            return (
                update
                | self.stage(stage or ("chat" if drawn else "empty"))
                | {p.thread: drawn, p.growing: ""}
            )
        if reply.compared:
            return update | self.stage("versus") | self.comparing(reply)
        above = conversation.above(self._service, reply, session.marked, session.shown, session.drawn)
        growing = conversation.growing_reply(reply.latest, reply, GrowingReply())
        return update | self.stage("chat") | {p.thread: above, p.growing: growing}

    def thread(self, session: Session, user_id: int) -> str:
        """The stored messages of the open conversation."""
        path, now = self._path(session, user_id), self._service.model_status
        session.sources_by = now.name if now.phase == "ready" else ""
        ends = session.until is None
        return thread(self._service, user_id, path, session.marked, session.shown, session.drawn, ends=ends)

    def window(self, session: Session, reply: ReplyInProgress) -> Update:
        """Draw how full the context window is with this reply, and remember it."""
        line = conversation.context(reply.latest) or session.context.get(reply.conversation_id, "")
        session.context[reply.conversation_id] = line
        return {self._parts.context: context(line)}

    def tray(self, session: Session, user_id: int) -> Update:
        """Above the box: files to be sent, and messages that wait."""
        chat = session.conversation or 0
        for file in session.attached.get(chat, ()):
            self.count(file)
        waiting = self._service.in_progress.waiting(user_id)
        return {self._parts.tray: tray(chat, session.attached, waiting, session.restored)}

    def count(self, file: Attached) -> None:
        """Count a file's tokens, as the loaded model does."""
        model = self._service.model_status.name
        if file.file is None or file.counted_by == model:
            return
        if (counted := self._service.tokens(fenced(file.file))) is not None:
            file.tokens, file.more, file.counted_by = min(counted), counted[0] > counted[1], model

    def settings(self, session: Session, user_id: int) -> Update:
        """The settings of the open conversation, where the panel shows another one's: what is typed stays."""
        if session.settings_of == session.conversation:
            return {}
        settings = self._service.chats.settings(user_id, session.conversation)
        session.settings_of = session.conversation
        session.settings_seen = self._service.changes.count(user_id)
        return chat_settings.drawn(self._parts.settings, self._service.presets.all(user_id), settings)

    def settings_news(self, session: Session, user_id: int) -> Update:
        """Draw settings that another page changed, or presets."""
        changes, chat, seen = self._service.changes, session.conversation, session.settings_seen
        session.settings_seen = changes.count(user_id)
        if chat is not None and changes.settings_changed(user_id, chat) > seen:
            session.settings_of = UNKNOWN
            return self.settings(session, user_id)
        if changes.settings_changed(user_id) <= seen:
            return {}
        presets = self._service.presets.all(user_id)
        if chat is None:  # what it shall set, the page alone knows
            return {self._parts.settings.preset: gr.update(choices=chat_settings.choices(presets))}
        settings = self._service.chats.settings(user_id, chat)
        return chat_settings.drawn(self._parts.settings, presets, settings, fields=False)

    def comparing(self, reply: ReplyInProgress) -> Update:
        """A comparison in progress."""
        p, hidden = self._parts, gr.update(visible="hidden")
        return self.columns(conversation.arms(reply.latest)) | {
            p.asked: comparison_view.asked(reply.text, files(reply.files)), p.result: "", p.back: hidden,
            p.verdict: status.waiting(_("Running both, one after the other")),
        }  # fmt: skip

    def has_panel(self, name: str) -> bool:
        """Return whether there is a panel of this name."""
        return name in self._panels

    def missing(self, session: Session, user_id: int, *, kept: bool) -> Update:
        """A chat, or what was clicked in it, is not there any more. `kept`: a message stands in the box."""
        sentence = _("That chat was deleted in another tab. The list is up to date again.")
        if session.conversation is not None and not self.exists(user_id, session.conversation):
            session.conversation = None
            sentence = deleted(kept)
        update = self.conversation(session, user_id) | self.chats(session, user_id, session.query)
        return update | self.tell(session, user_id, status.error(sentence))

    def exists(self, user_id: int, conversation: int) -> bool:
        """Return whether this user has that conversation."""
        return self._service.chats.has(user_id, conversation)

    def _path(self, session: Session, user_id: int) -> list[Any]:
        if session.conversation is None:
            return []
        return self._service.chats.messages(user_id, session.conversation, session.until, session.drawn + 1)

    def columns(
        self, arms: Mapping[Arm, Frame | None], words: Mapping[Arm, GrowingReply] | None = None
    ) -> Update:
        """Both columns of a comparison."""
        update: Update = {}
        words = words or comparison_view.words()
        for arm, (text, figures) in self._parts.columns.items():
            update[text], update[figures] = comparison_view.column(arms.get(arm), words[arm])
        return update


def deleted(kept: bool) -> str:
    """A sentence on the open chat. `kept`: a message stands in the box."""
    more = _(" Your message is still in the box: send it to begin a new chat.") if kept else ""
    return _("This chat was deleted in another tab.{more}").format(more=more)


def cue(kind: Literal["reply", "news"], number: int) -> str:
    """Return what assets/page/going_on.js acts on, once for each number."""
    return f'<i data-cue="{kind}" data-number="{number}"></i>'


def context(line: str) -> str:
    """The line about the context window as HTML."""
    return f'<div class="hc-context">{line}</div>'
