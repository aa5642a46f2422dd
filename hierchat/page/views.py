"""Build updates of the page, dictionaries from component to value: what every handler answers with."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import gradio as gr

from hierchat.chat.chat_documents import DocumentReading
from hierchat.chat.comparison import CompareFrame
from hierchat.chat.frames import Arm, Frame
from hierchat.chat.in_progress import ReplyInProgress
from hierchat.chat.service import ChatService
from hierchat.language import _
from hierchat.page import chat_settings, compare, conversation, sidebar, status
from hierchat.page.components import Components, heading, model_choices, recent
from hierchat.page.conversation import GrowingReply, ShownMessage
from hierchat.page.page_sessions import UNKNOWN, Attached, Session, end_incognito, incognito_line
from hierchat.page.panels.panel import Panel
from hierchat.page.templates import Macros
from hierchat.store import LOCAL_USER, NotFound
from hierchat.store.records import Document, Message
from hierchat.texts.attachments import fenced

_DOCUMENTS, _MODELS = Macros("documents.html"), Macros("models.html")
Update = dict[Any, Any]
"""From components to their values, and from names to words for the page's script."""


class Views:
    """Draws the page's parts from the store."""

    def __init__(self, service: ChatService, parts: Components, panels: Sequence[Panel]) -> None:
        self._service = service
        self._parts = parts
        self.panels = {panel.name: panel for panel in panels}

    def now(self, session: Session) -> ReplyInProgress | None:
        """Return the reply in progress in the conversation on the screen, whichever page asked for it, or None."""
        return self._service.in_progress.of(session.user, session.conversation)

    def whole(self, session: Session) -> Update:
        account = sidebar.account(session.name) if session.name != LOCAL_USER else ""
        return self.everything(session) | self.model(session) | {self._parts.account: account}

    def everything(self, session: Session) -> Update:
        seen = self._service.changes.count(session.user)
        drawn = self.conversation(session) | self.chats(session)
        session.seen = seen  # what changed meanwhile, the stream draws
        return drawn

    def step(self, session: Session) -> Update:
        """Draw what a click opened, and the list if it changed: the script marks in it what is open (list.js)."""
        seen = self._service.changes.count(session.user)
        drawn = self.conversation(session) | ({} if session.list_seen == seen else self.chats(session))
        session.seen = seen
        return drawn

    def open_panel(self, session: Session, name: str) -> Update:
        """Show a panel in place of the conversation; an empty page if there is none of this name."""
        session.leave()
        session.conversation, session.panel = None, name if name in self.panels else ""
        timer = {self._parts.timer: gr.Timer(active=True)} if self._service.models.busy else {}
        return self.step(session) | timer

    def words(self, session: Session) -> dict[str, str]:
        """Return the values that the page's script needs (stream.js)."""
        return {
            "step": str(session.step),
            "place": self._place(session),
            "busy": str(session.reply.number if session.reply else ""),
            "begun": str(session.begun),
            "answered": session.answered,
            "fetch": str(session.fetch),
        }

    def live(self, session: Session) -> Update:
        """Draw the line above the box: what the reply in progress does, or that one is written in another chat."""
        return {self._parts.live: self._live(session)}

    def tell(self, session: Session, sentence: str, about: str = "") -> Update:
        """Show a sentence above the box, as HTML, until it is closed, another chat opens, or its `about` is settled."""
        said = status.closable(sentence)
        session.about = about
        if (reply := self.now(session)) is None:
            session.remark = said
            return {self._parts.live: said}
        session.note = said
        return {self._parts.live: said + self.line(reply)}

    def settled(self, session: Session, about: str) -> Update:
        """Remove the remark about something that is settled."""
        if session.about != about:
            return {}
        session.remark = session.note = session.about = ""
        return self.live(session)

    def _live(self, session: Session) -> str:
        if (reply := self.now(session)) is not None:
            return session.note + self.line(reply)
        if session.remark:
            return session.remark
        for other in self._service.in_progress.all_of(session.user):
            with suppress(NotFound):  # deleted elsewhere
                title = self._title(session, other.conversation_id)
                asks = self._service.tools.waits(session.user, other.above)
                said = _("“{title}” waits for your Yes or No") if asks else _("Still writing in “{title}”")
                return status.waiting(said.format(title=title))
        return ""

    def opening_remark(self, session: Session) -> str:
        """Say that the model does not read all of the open chat; empty if it does."""
        if (chat := session.conversation) is None or self.now(session):
            return ""
        left = self._service.left_out(session.user, chat)
        return status.closable(conversation.left_out(left)) if left else ""

    def chats(self, session: Session) -> Update:
        """Draw the list of conversations that the search finds, and the lines below it."""
        query, seen = session.query, self._service.changes.count(session.user)
        found = self._service.chats.find(
            session.user, query, session.listed, archived=session.archived, unfolded=session.unfolded
        )
        if all(project.id != session.project for project in found.projects):
            session.project = None  # deleted
        presets = [(preset.id, preset.name) for preset in self._service.presets.all(session.user)]
        choices: sidebar.Choices = {"models": self._service.models.names, "presets": presets}
        session.archived = session.archived and found.archived > 0
        archived = session.archived and not query.strip()
        drawn = sidebar.projects(found, session.unfolded, session.conversation, choices)
        drawn += sidebar.conversation_list(
            found, session.conversation, date.today(), query, show_archived=archived
        )
        session.list_seen = seen
        latest = sorted([] if query.strip() or archived else found.conversations, key=lambda c: -c.updated_at)
        return {
            self._parts.list: drawn,
            self._parts.undo: session.undo,
            self._parts.recent: recent(latest[:3]),
        }

    def heading(self, session: Session) -> Update:
        panel = self.panels.get(session.panel)
        title = _(panel.title) if panel else self._title(session, session.conversation)
        open_chat = None if panel else session.conversation
        fork = open_chat is not None and self._service.chats.get(session.user, open_chat).fork
        if not panel and session.conversation is None:
            projects = self._service.projects.all(session.user)
            name = next((project.name for project in projects if project.id == session.project), "")
            title = _("New chat in {project}").format(project=name) if name else title
        return {
            self._parts.links: sidebar.links(self.panels.values(), session.panel),
            self._parts.title: heading(title, fork),
            self._parts.incognito: "" if panel else incognito_line(session),
        }

    def _place(self, session: Session) -> str:
        if session.panel in self.panels:
            return f"panel {session.panel}"
        # What leaves nothing stands in no address.
        incognito = "incognito " if session.conversation == session.incognito_chat is not None else ""
        return f"{incognito}{session.conversation or 0}"

    def _title(self, session: Session, conversation: int | None) -> str:
        title = "" if conversation is None else self._service.chats.title(session.user, conversation)
        return title or _(sidebar.UNTITLED)

    def conversation(self, session: Session) -> Update:
        """Draw the open conversation: as stored, as its reply in progress, or as a comparison that has ended."""
        end_incognito(self._service, session)
        session.thread_seen = self._service.changes.count(session.user)
        # One whose end this page has not drawn yet is still in progress here.
        ending = (one for one in session.following if one.conversation_id == session.conversation)
        p, reply = self._parts, self.now(session) or next(ending, None)
        session.reply = reply
        if reply:
            self.window(session, reply)
        update: Update = {p.context: _context(session.context.get(session.conversation or 0, ""))}
        update |= self.heading(session) | self.live(session)
        update |= self.tray(session) | self._settings(session) | self.documents(session)
        if panel := self.panels.get(session.panel):
            return update | self._stage(panel.name) | panel.show(session)
        if reply is None:
            drawn = self.thread(session)
            update |= {p.thread: drawn, p.growing: ""}
            if session.compared:
                return update | self._comparison(session.compared)
            return update | self._stage("chat" if drawn else "empty")
        if reply.compared:
            return update | self._comparison(reply)
        path: Sequence[Message] = []
        if (below := reply.above or reply.below) is not None:
            path = self._service.chats.messages(session.user, reply.conversation_id, below, session.drawn + 1)
        above = self._thread(session, path, replying=True)
        if reply.asks and reply.above is None:
            above += conversation.user_message(reply.text, files=conversation.files(reply.files))
        growing = conversation.growing_reply(reply.latest, reply, GrowingReply())
        return update | self._stage("chat") | {p.thread: above, p.growing: growing}

    def _comparison(self, reply: ReplyInProgress) -> Update:
        """Draw both sides of a comparison, and the verdict once there is one."""
        p, latest = self._parts, reply.latest
        found = latest.verdict if isinstance(latest, CompareFrame) else None
        running = "" if reply.wait(0) else status.waiting(_("Running both, one after the other"))
        update = self._stage("versus") | self.columns(conversation.arms(latest))
        return update | {
            p.asked: compare.asked(reply.text, conversation.files(reply.files)),
            p.verdict: compare.verdict_line(found) if found else running,
        }

    def _stage(self, name: str) -> Update:
        """Show "empty", "chat", "versus" or a panel in the middle of the page, and hide the others."""
        return {"stage": f"panel-{name}" if name in self.panels else name, self._parts.offer: self._offer()}

    def _offer(self) -> str:
        offer, downloads = self._service.models.offer(), self._service.models.downloads
        return _MODELS.offer(offer, downloads.of(offer.best.name) if offer and offer.best else None)

    def thread(self, session: Session) -> str:
        now, user = self._service.model_status, session.user
        session.sources_by = now.name if now.phase == "ready" else ""
        if session.conversation is None:
            return ""
        most = session.drawn + 1
        path = self._service.chats.messages(user, session.conversation, session.until, most)
        return self._thread(session, path, ends=session.until is None)

    def _thread(self, session: Session, path: Sequence[Message], **how: bool) -> str:
        messages, most = [message for message in path if message.role != "system"], session.drawn
        begin = max(len(messages) - most, 0)
        if begin and messages[begin].role != "user":  # its question stands above
            begin += 1
        drawn = [self.shown(session, message) for message in messages[begin:]]
        status, here = self._service.model_status, self._service.models.names
        return conversation.thread(drawn, status, here, earlier=begin > 0, **how)

    def shown(self, session: Session, message: Message) -> ShownMessage:
        """Collect what is drawn of a message: sources of its words and texts of its files if they are switched on."""
        service, user = self._service, session.user
        if message.role == "user":
            opened = [file.id for file in message.attachments if file.id in session.shown]
            files = {id: service.chats.attachment(user, id) for id in opened}
            numbered = any(file.number for file in message.attachments)
            sent = service.chats.attachments(user, message.id) if numbered else []
            texts = {file.number: f"{file.name}\n{file.text}" for file in sent if file.number}
            return ShownMessage(message, files=files, passages=texts)
        runs = service.runs(user, message.id) if message.id in session.marked else None
        figures, details = service.figures(user, message.id), message.id in session.detailed
        return ShownMessage(message, figures, runs, details=details)

    def line(self, reply: ReplyInProgress) -> str:
        return conversation.line(reply, self._service.model_status, loaded=self._service.served is not None)

    def window(self, session: Session, reply: ReplyInProgress) -> Update:
        """Draw how full the context window is with this reply, and remember it."""
        line = conversation.context(reply.latest) or session.context.get(reply.conversation_id, "")
        session.context[reply.conversation_id] = line
        return {self._parts.context: _context(line)}

    def tray(self, session: Session) -> Update:
        """Draw the tray above the box: files to be sent, and messages that wait."""
        for file in session.files:
            self.count(file)
        waiting = self._service.in_progress.waiting(session.user)
        return {self._parts.tray: conversation.tray(session, waiting)}

    def documents(self, session: Session, said: str = "") -> Update:
        """Draw the documents of the open conversation, and how far others are read. `said`: in answer to a click."""
        service, chat, user = self._service, session.conversation, session.user
        project = session.project if chat is None else service.chats.get(user, chat).project_id
        now = service.documents.readings.get(user)
        now = now if now and now.chat == chat and (chat is not None or now.project == project) else None
        listed, owner = service.documents.listed(user, chat, project), service.users.is_owner(user)
        drawn = _DOCUMENTS.of_chat(listed, service.passage_budget, now, owner, project is not None, said)
        return {
            self._parts.settings.documents: drawn,
            self._parts.settings.reading: gr.Timer(active=now is not None and not now.ended.is_set()),
            self._parts.project: self._project(session, listed, now, said),
        }

    def _project(
        self, session: Session, documents: Sequence[Document], now: DocumentReading | None, said: str
    ) -> str:
        """Draw the page of the project in which the next chat begins; empty for any other page."""
        user, id = session.user, session.project if session.conversation is None else None
        project = next((one for one in self._service.projects.all(user) if one.id == id), None)
        if project is None:
            return ""
        inside = self._service.chats.find(user, "", session.listed, unfolded=id).inside
        chats = [(chat, sidebar.moment(chat.updated_at)) for chat in inside]
        return _DOCUMENTS.of_project(project, documents, chats, now, said)

    def count(self, file: Attached) -> None:
        model = self._service.model_status.name
        if file.file is None or file.counted_by == model:
            return
        if (counted := self._service.tokens(fenced(file.file))) is not None:
            file.tokens, file.more, file.counted_by = min(counted), counted[0] > counted[1], model

    def _settings(self, session: Session) -> Update:
        shown = {self._parts.bus: f"{session.key} {session.conversation or 0}"}
        if session.settings_of == session.conversation:
            return shown
        settings = self._service.chats.settings(session.user, session.conversation, session.project)
        session.settings_of = session.conversation
        session.settings_seen = self._service.changes.count(session.user)
        presets, notes = self._service.presets.all(session.user), self._service.users.notes(session.user)
        panel = self._parts.settings
        return shown | chat_settings.drawn(panel, presets, settings) | {panel.about: notes}

    def settings_news(self, session: Session) -> Update:
        user, chat, seen = session.user, session.conversation, session.settings_seen
        changes = self._service.changes
        session.settings_seen = changes.count(user)
        if chat is not None and changes.settings_changed(user, chat) > seen:
            session.settings_of = UNKNOWN
            return self._settings(session)
        if changes.settings_changed(user) <= seen:
            return {}
        presets = self._service.presets.all(user)
        if chat is None:  # what it shall set, the page alone knows
            return {self._parts.settings.preset: gr.update(choices=chat_settings.choices(presets))}
        settings = self._service.chats.settings(user, chat)
        return chat_settings.drawn(self._parts.settings, presets, settings, fields=False)

    def model(self, session: Session) -> Update:
        """Draw how far the model is loaded; the timer rests once there is nothing more to report."""
        p, now, models = self._parts, self._service.model_status, self._service.models
        session.picked = now.name
        done = now.phase in ("ready", "failed", "none") and not models.busy
        return {
            p.host: status.slot_line(now),
            p.timer: gr.Timer(active=not done),
            p.offer: self._offer(),
            # It may have been chosen elsewhere, or another one that was asked for did not come.
            p.model: gr.update(**self.picker()),
            p.pair: compare.form(models.names),
            p.settings.thinks: chat_settings.offered(self._service.thinks),
        }

    def picker(self) -> Mapping[str, Any]:
        now, names = self._service.model_status, self._service.models.names
        there = now.name in names and now.phase != "none"
        return {"choices": model_choices(names), "value": now.name if there else None}

    def missing(self, session: Session, *, kept: bool) -> Update:
        """Draw the page after a chat, or what was clicked in it, has gone. `kept`: a message stands in the box."""
        sentence = _("That chat was deleted in another tab. The list is up to date again.")
        open_chat = session.conversation
        if open_chat is not None and not self._service.chats.has(session.user, open_chat):
            session.conversation = session.compared = None
            sentence = deleted(kept)
        return self.everything(session) | self.tell(session, status.error(sentence))

    def columns(self, arms: Mapping[Arm, Frame], words: Mapping[Arm, GrowingReply] | None = None) -> Update:
        update: Update = {}
        words = words or defaultdict(GrowingReply)
        for arm, (text, figures) in self._parts.columns.items():
            update[text], update[figures] = compare.column(arms.get(arm), words[arm])
        return update


def deleted(kept: bool) -> str:
    """Say that the open chat was deleted elsewhere. `kept`: a message stands in the box."""
    more = _(" Your message is still in the box: send it to begin a new chat.") if kept else ""
    return _("This chat was deleted in another tab.{more}").format(more=more)


def _context(line: str) -> str:
    return f'<div class="hc-context">{line}</div>'
