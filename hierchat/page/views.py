"""Draw the parts of a page from its screen and the store, as dictionaries from component to value."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import gradio as gr

from hierchat.chat.chat_documents import DocumentReading
from hierchat.chat.frames import Arm, CompareFrame, Frame
from hierchat.chat.in_progress import ReplyInProgress
from hierchat.chat.service import ChatService
from hierchat.language import _
from hierchat.page import chat_settings, conversation, sidebar, status
from hierchat.page.components import Components, heading, model_choices, recent
from hierchat.page.conversation import GrowingReply, ShownMessage
from hierchat.page.page_sessions import UNKNOWN, Session, incognito_line
from hierchat.page.panels.panel import Panel
from hierchat.page.screen import Screen
from hierchat.page.templates import Macros
from hierchat.runtime.downloads import Download
from hierchat.runtime.model_manager import Offer
from hierchat.store import LOCAL_USER, NotFound
from hierchat.store.records import Document, Message, Project

_DOCUMENTS, _MODELS = Macros("documents.html"), Macros("models.html")
_DIGITS = 18
"""Digits of a number that SQLite can hold."""
Update = dict[Any, Any]
"""From components to their values, and from names to words for the page's script."""


class Views:
    """Draws the page's parts. What each of them is drawn from, the writer knows (writer.py)."""

    def __init__(self, service: ChatService, parts: Components, panels: Sequence[Panel]) -> None:
        self._service = service
        self._parts = parts
        self.panels = {panel.name: panel for panel in panels}

    def at_address(self, user: int, query: Mapping[str, str]) -> Screen:
        """Return the screen that a page's address names: a chat, if this user has it, or a panel."""
        chat, panel = query.get("c", ""), query.get("view", "")
        number = int(chat) if chat.isdecimal() and len(chat) <= _DIGITS else 0
        there = bool(number) and self._service.chats.has(user, number)
        return Screen(conversation=number if there else None, panel=panel if panel in self.panels else "")

    def now(self, session: Session) -> ReplyInProgress | None:
        """Return the reply in progress in the conversation on the screen, whichever page asked for it, or None."""
        return self._service.in_progress.of(session.user, session.screen.conversation)

    def words(self, session: Session) -> dict[str, str]:
        """Return the values that the page's script needs (stream.js)."""
        return {
            "step": str(session.step),
            "place": self._place(session.screen),
            "busy": str(session.reply.number if session.reply else ""),
            "begun": str(session.begun),
            "answered": session.answered,
            "fetch": str(session.fetch),
        }

    def tell(self, session: Session, sentence: str) -> None:
        """Show a sentence above the box, as HTML, until it is closed, another chat opens, or a message is sent."""
        place = "remark" if self.now(session) is None else "note"
        session.show(**{place: status.closable(sentence)})

    def open_panel(self, session: Session, name: str) -> Update:
        """Show a panel in place of the conversation; an empty page if there is none of this name."""
        session.leave(conversation=None, panel=name if name in self.panels else "")
        return {self._parts.timer: gr.Timer(active=True)} if self._service.models.busy else {}

    def account(self, session: Session) -> Update:
        return {self._parts.account: sidebar.account(session.name) if session.name != LOCAL_USER else ""}

    def live(self, session: Session) -> Update:
        """Draw the line above the box: what the reply in progress does, or that one is written in another chat."""
        live = self._parts.live
        if (reply := self.now(session)) is not None:
            return {live: session.screen.note + self.line(reply)}
        if session.screen.remark:
            return {live: session.screen.remark}
        for other in self._service.in_progress.all_of(session.user):
            with suppress(NotFound):  # deleted elsewhere
                title = self._title(session, other.conversation_id)
                asks = self._service.tools.waits(session.user, other.above)
                said = _("“{title}” waits for your Yes or No") if asks else _("Still writing in “{title}”")
                return {live: status.waiting(said.format(title=title))}
        return {live: ""}

    def chats(self, session: Session) -> Update:
        """Draw the list of conversations that the search finds, and the lines below it."""
        screen, user = session.screen, session.user
        found = self._service.chats.find(
            user, screen.query, screen.listed, archived=screen.archived, unfolded=screen.unfolded
        )
        presets = [(preset.id, preset.name) for preset in self._service.presets.all(user)]
        choices: sidebar.Choices = {"models": self._service.models.names, "presets": presets}
        archived = screen.archived and found.archived > 0 and not screen.query.strip()
        drawn = sidebar.projects(found, screen.unfolded, screen.conversation, choices)
        drawn += sidebar.conversation_list(
            found, screen.conversation, date.today(), screen.query, show_archived=archived
        )
        begun = [] if screen.query.strip() or archived else found.conversations
        latest = sorted(begun, key=lambda chat: -chat.updated_at)
        return {
            self._parts.list: drawn,
            self._parts.undo: screen.undo,
            self._parts.recent: recent(latest[:3]),
        }

    def heading(self, session: Session) -> Update:
        screen = session.screen
        panel = self.panels.get(screen.panel)
        title = _(panel.title) if panel else self._title(session, screen.conversation)
        if not panel and screen.conversation is None and (project := self.project(session)):
            title = _("New chat in {project}").format(project=project.name)
        return {
            self._parts.links: sidebar.links(self.panels.values(), screen.panel),
            self._parts.title: heading(title),
            self._parts.incognito: "" if panel else incognito_line(screen),
        }

    def _place(self, screen: Screen) -> str:
        if screen.panel in self.panels:
            return f"panel {screen.panel}"
        # What leaves nothing stands in no address.
        incognito = "incognito " if screen.conversation == screen.incognito_chat is not None else ""
        return f"{incognito}{screen.conversation or 0}"

    def project(self, session: Session) -> Project | None:
        """Return the project in which the next conversation begins."""
        wanted = session.screen.project
        return next((one for one in self._service.projects.all(session.user) if one.id == wanted), None)

    def _title(self, session: Session, conversation: int | None) -> str:
        title = "" if conversation is None else self._service.chats.title(session.user, conversation)
        return title or _(sidebar.UNTITLED)

    def middle(self, session: Session) -> Update:
        """Draw the open panel, or conversation: as stored, as its reply in progress, or as a comparison that ended."""
        p, screen, reply = self._parts, session.screen, session.reply
        if panel := self.panels.get(screen.panel):
            return self._stage(panel.name) | panel.show(session)
        if reply is None:
            drawn = self._thread_as_stored(session)
            update: Update = {p.thread: drawn, p.growing: ""}
            if screen.compared:
                return update | self._comparison(screen.compared)
            return update | self._stage("chat" if drawn else "empty")
        if reply.compared:
            return self._comparison(reply)
        path: Sequence[Message] = []
        if (below := reply.above or reply.below) is not None:
            path = self._service.chats.messages(session.user, reply.conversation_id, below, screen.drawn + 1)
        above = self._thread(session, path, replying=True)
        if reply.asks and reply.above is None:
            above += conversation.user_message(reply.text, files=conversation.files(reply.files))
        growing = conversation.growing_reply(reply.latest, reply, GrowingReply())
        return self._stage("chat") | {p.thread: above, p.growing: growing}

    def _comparison(self, reply: ReplyInProgress) -> Update:
        """Draw both sides of a comparison, and the verdict once there is one."""
        p, latest = self._parts, reply.latest
        found = latest.verdict if isinstance(latest, CompareFrame) else None
        running = "" if reply.ended.is_set() else status.waiting(_("Running both, one after the other"))
        update = self._stage("versus") | self.columns(conversation.arms(latest))
        return update | {
            p.asked: conversation.asked(reply.text, conversation.files(reply.files)),
            p.verdict: conversation.verdict_line(found) if found else running,
        }

    def _stage(self, name: str) -> Update:
        """Show "empty", "chat", "versus" or a panel in the middle of the page, and hide the others."""
        return {"stage": f"panel-{name}" if name in self.panels else name}

    def offer(self, session: Session) -> Update:
        return {self._parts.offer: _MODELS.offer(*self.offered())}

    def offered(self) -> tuple[Offer | None, Download | None]:
        """Return the better model that the empty page offers, and its download."""
        offer, downloads = self._service.models.offer(), self._service.models.downloads
        return offer, downloads.of(offer.best.name) if offer and offer.best else None

    def _thread_as_stored(self, session: Session) -> str:
        screen = session.screen
        if screen.conversation is None:
            return ""
        self._service.chats.get(session.user, screen.conversation)  # it may be gone
        most = screen.drawn + 1
        path = self._service.chats.messages(session.user, screen.conversation, screen.until, most)
        return self._thread(session, path, ends=screen.until is None)

    def _thread(self, session: Session, path: Sequence[Message], **how: bool) -> str:
        messages, most = [message for message in path if message.role != "system"], session.screen.drawn
        begin = max(len(messages) - most, 0)
        if begin and messages[begin].role != "user":  # its question stands above
            begin += 1
        drawn = [self._shown(session, message) for message in messages[begin:]]
        status, here = self._service.model_status, self._service.models.names
        return conversation.thread(drawn, status, here, earlier=begin > 0, **how)

    def _shown(self, session: Session, message: Message) -> ShownMessage:
        """Collect what is drawn of a message: sources of its words and texts of its files if they are switched on."""
        service, user = self._service, session.user
        if message.role == "user":
            opened = [file.id for file in message.attachments if file.id in session.screen.shown]
            files = {id: service.chats.attachment(user, id) for id in opened}
            numbered = any(file.number for file in message.attachments)
            sent = service.chats.attachments(user, message.id) if numbered else []
            texts = {file.number: f"{file.name}\n{file.text}" for file in sent if file.number}
            return ShownMessage(message, files=files, passages=texts)
        runs = service.runs(user, message.id) if message.id in session.screen.marked else None
        figures, details = service.figures(user, message.id), message.id in session.screen.detailed
        return ShownMessage(message, figures, runs, details=details)

    def line(self, reply: ReplyInProgress) -> str:
        return conversation.line(reply, self._service.model_status, loaded=self._service.served is not None)

    def window(self, session: Session, reply: ReplyInProgress) -> None:
        """Note how full the context window is with this reply."""
        if line := conversation.context(reply.latest):
            session.context[reply.conversation_id] = line

    def context(self, session: Session) -> Update:
        line = session.context.get(session.screen.conversation or 0, "")
        return {self._parts.context: f'<div class="hc-context">{line}</div>'}

    def tray(self, session: Session) -> Update:
        """Draw the tray above the box: files to be sent, and messages that wait."""
        waiting = self._service.in_progress.waiting(session.user)
        return {self._parts.tray: conversation.tray(session.screen, waiting)}

    def reading(self, session: Session) -> DocumentReading | None:
        """Return the reading of documents for the open conversation, or for the project of the next one."""
        now, screen = self._service.documents.readings.get(session.user), session.screen
        new = screen.conversation is None
        if now is None or now.chat != screen.conversation or (new and now.project != screen.project):
            return None
        return now

    def documents(self, session: Session) -> Update:
        """Draw the documents of the open conversation or project, and how far others are read."""
        service, user, screen = self._service, session.user, session.screen
        chat, now, said = screen.conversation, self.reading(session), screen.said_of_documents
        project = screen.project if chat is None else service.chats.get(user, chat).project_id
        listed, owner = service.documents.listed(user, chat, project), service.users.is_owner(user)
        drawn = _DOCUMENTS.of_chat(listed, service.passage_budget, now, owner, project is not None, said)
        return {
            self._parts.settings.documents: drawn,
            self._parts.settings.reading: gr.Timer(active=now is not None and not now.ended.is_set()),
            self._parts.project: self._project(session, listed, now),
        }

    def _project(self, session: Session, documents: Sequence[Document], now: DocumentReading | None) -> str:
        """Draw the page of the project in which the next chat begins; empty for any other page."""
        screen = session.screen
        if screen.conversation is not None or (project := self.project(session)) is None:
            return ""
        inside = self._service.chats.find(session.user, "", screen.listed, unfolded=project.id).inside
        return _DOCUMENTS.of_project(project, documents, inside, now, screen.said_of_documents)

    def settings(self, session: Session) -> Update:
        """Draw the open conversation's settings if the panel shows others, or else what other pages changed."""
        user, chat, seen = session.user, session.screen.conversation, session.settings_seen
        changes, panel = self._service.changes, self._parts.settings
        session.settings_seen = changes.count(user)
        if chat is not None and changes.settings_changed(user, chat) > seen:
            session.settings_of = UNKNOWN
        presets_changed = changes.settings_changed(user) > seen
        if session.settings_of == chat and not presets_changed:
            return {}
        presets = self._service.presets.all(user)
        if session.settings_of != chat:
            settings = self._service.chats.settings(user, chat, session.screen.project)
            session.settings_of = chat
            return chat_settings.drawn(panel, presets, settings) | {
                panel.about: self._service.users.notes(user)
            }
        if chat is None:  # what it shall set, the page alone knows
            return {panel.preset: gr.update(choices=chat_settings.choices(presets))}
        settings = self._service.chats.settings(user, chat)
        return chat_settings.drawn(panel, presets, settings, fields=False)

    def model(self, session: Session) -> Update:
        """Draw how far the model is loaded. The timer rests after one more look than is needed: the list of models was
        drawn before this, and would miss the end."""
        p, now, models = self._parts, self._service.model_status, self._service.models
        if models.busy or now.phase not in ("ready", "failed", "none"):
            session.model_busy = session.model_looks
        return {
            p.host: status.slot_line(now),
            p.timer: gr.Timer(active=session.model_busy >= session.model_looks - 1),
            # It may have been chosen elsewhere, or another one that was asked for did not come.
            p.model: gr.update(**self.picker()),
            p.pair: conversation.pair_form(models.names),
            p.settings.thinks: chat_settings.offered(self._service.thinks),
        }

    def picker(self) -> Mapping[str, Any]:
        now, names = self._service.model_status, self._service.models.names
        there = now.name in names and now.phase != "none"
        return {"choices": model_choices(names), "value": now.name if there else None}

    def missing(self, session: Session, *, kept: bool) -> None:
        """Say that a chat, or what was clicked in it, has gone, and have all drawn anew: it may have gone without news,
        as by a command. `kept`: the box holds a message."""
        session.drawn_from = {}
        sentence = _("That chat was deleted in another tab. The list is up to date again.")
        chat = session.screen.conversation
        if chat is not None and not self._service.chats.has(session.user, chat):
            session.show(conversation=None, compared=None)
            sentence = deleted(kept)
        self.tell(session, status.error(sentence))

    def columns(self, arms: Mapping[Arm, Frame], words: Mapping[Arm, GrowingReply] | None = None) -> Update:
        update: Update = {}
        words = words or defaultdict(GrowingReply)
        for arm, (text, figures) in self._parts.columns.items():
            update[text], update[figures] = conversation.column(arms.get(arm), words[arm])
        return update


def deleted(kept: bool) -> str:
    """Say that the open chat was deleted elsewhere. `kept`: a message stands in the box."""
    more = _(" Your message is still in the box: send it to begin a new chat.") if kept else ""
    return _("This chat was deleted in another tab.{more}").format(more=more)
