"""Handle events that only show or keep: opening, searching, putting chats in order, projects, settings of a chat."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from hierchat.access.files import TicketExpired, files
from hierchat.chat import comparison
from hierchat.language import _, later
from hierchat.page import chat_settings, compare, page_sessions, sidebar, status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.event_data import EventFields, PageEvent, of_type, parsed, whole
from hierchat.page.guard import EACH, SETTINGS, HandlerGroup, OwnerOnly, Remark, require_owner
from hierchat.page.views import Update
from hierchat.store import LOCAL_USER, NotFound
from hierchat.store.records import ChatSettings, Project
from hierchat.texts.text_files import CorpusError, named_path

_NOT_WHOLE = later(
    " Bytes of them may be left in the file while another program reads it or the disk is full: run `hierchat forget` "
    "when hierchat has ended."
)
_WRITING = later(
    "A reply is still being written in this chat. Edit this one when it has ended, or stop it first."
)


class PageHandlers(HandlerGroup):
    """Handles opening and closing of pages, changes made elsewhere, and what is on the screen."""

    def wire(self) -> None:
        on, p = self._page.on, self._parts
        on(self._page.app.load, self.load)
        on("hc_fetch", lambda event: {}, **EACH)
        on("hc_rest", self.rest, outputs=[])
        steps = {"hc_new": self.new, "hc_open": self.open, "hc_go": self.go, "hc_panel": self.panel}
        for trigger, step in steps.items():
            # The last one counts. Gradio 6.31's "always_last" would run the first click again.
            on(trigger, step, **EACH)
        on("hc_details", self.details, **EACH)
        on(p.query.change, self.search, [p.query], trigger_mode="always_last")
        on(p.compare.change, self.compare, [p.compare])
        # Each change, one after the other: the last one counts.
        on("hc_setup", self.choose_pair, outputs=[p.setup], trigger_mode="multiple", concurrency_limit=1)
        on(p.back.click, self.back)
        on(p.stop.click, self.stop, outputs=[], apart=True)
        on("hc_dismiss", self.dismiss, outputs=[])
        for name, handler in {
            "hc_incognito": self.incognito, "hc_incognito_keep": self.keep_incognito, "hc_more": self.more,
            "hc_forget": self.forget, "hc_earlier": self.earlier, "hc_latest": self.latest,
        }.items():  # fmt: skip
            on(name, handler)
        on("hc_branch", self.branch, **EACH)
        on("hc_sources", self.sources, **EACH)

    def load(self, event: PageEvent) -> Update:
        """Draw a page that opens: the conversation in its address, if this user has it, or the panel."""
        request, service = event.request, self._service
        self._page.sessions.open(request.session_hash)
        page_sessions.forget_stragglers(self._page.app, self._page.sessions)
        self._page.users.pop(request.username or LOCAL_USER, None)  # may have been forgotten since
        session, user = event.session, event.user
        number, panel = page_sessions.from_address(request.query_params)
        self._show(session, number)
        session.panel, session.query = panel if panel in self._views.panels else "", ""
        update = self._views.whole(session)
        if service.data.notice and service.users.is_owner(user):
            update |= self._views.tell(session, status.notice(service.data.notice))
        if request.query_params.get("c") and session.conversation is None:
            gone = status.error(_("There is no chat at this address. It may have been deleted."))
            update |= self._views.tell(session, gone)
        return update

    def rest(self, event: PageEvent) -> None:
        """Keep a page whose stream ends now, because nobody sees it."""
        event.session.rests = True

    def new(self, event: PageEvent) -> Update:
        """Show an empty page; a conversation is stored with its first message."""
        if event.overtaken:
            return {}
        event.session.leave()
        event.session.conversation, event.session.project = None, None
        event.session.settings_of = page_sessions.UNKNOWN
        page_sessions.read_ahead(self._service, event.session)
        return self._views.step(event.session)

    def open(self, event: PageEvent) -> Update:
        """Open a conversation from the list; with a hit of the search, the branch that holds it."""
        session, user, chats = event.session, event.user, self._service.chats
        if event.overtaken:
            return {}
        wanted, hit = event.id, str(event.data.get("text", ""))
        chats.get(user, wanted)  # it may have been deleted elsewhere: stay where we are
        session.leave()
        self._show(session, wanted)
        if hit and self._views.now(session) is None:
            path = [message.id for message in chats.messages(user, wanted)]
            if whole(hit) not in path:
                chats.select_branch(user, whole(hit))
                path = [message.id for message in chats.messages(user, wanted)]
            if whole(hit) in path[: -page_sessions.DRAWN]:  # of a long chat the part that holds it is drawn
                session.until = path[path.index(whole(hit)) + page_sessions.DRAWN // 2]
        return self._views.step(session)

    def go(self, event: PageEvent) -> Update:
        """Follow the browser's Back and Forward: show the conversation open then, or the empty page for 0."""
        session = event.session
        if event.overtaken:
            return {}
        session.leave()
        self._show(session, event.id)
        update = self._views.step(session)
        if event.id and session.conversation is None:
            gone = status.notice(_("The chat that was open here has been deleted."))
            update |= self._views.tell(session, gone)
        return update

    def panel(self, event: PageEvent) -> Update:
        """Open a panel in place of the conversation, whose reply goes on."""
        return {} if event.overtaken else self._views.open_panel(event.session, event.text)

    def search(self, event: PageEvent, query: str) -> Update:
        event.session.listed, event.session.query = page_sessions.PAGE, query
        return self._views.chats(event.session)

    def more(self, event: PageEvent) -> Update:
        """List more conversations, since the user comes near the end of the list."""
        event.session.listed += page_sessions.PAGE
        return self._views.chats(event.session)

    def incognito(self, event: PageEvent) -> Update:
        event.session.incognito = not event.session.incognito
        if event.session.incognito:  # files that were attached before are read already
            self._service.forget_read_ahead(event.user)
        return self._views.heading(event.session)

    def keep_incognito(self, event: PageEvent) -> Update:
        session = event.session
        if (kept := session.incognito_chat) is not None:
            self._service.chats.keep_incognito(session.user, kept)
            session.incognito_chat = None
        return self._views.heading(session) | self._views.chats(session)

    def forget(self, event: PageEvent) -> Update:
        """Delete all that is stored of this user, and say how much it was."""
        session, user = event.session, event.user
        session.conversation = None
        chats, messages = self._service.users.counts(user)
        all_gone = self._service.forget_user(user)
        self._page.users.pop(session.name, None)
        session.undo, session.marked = "", set()
        self._service.changes.notify(user)
        self._service.changes.notify(self._page.session_of(event.request).user)
        gone = _(
            "Deleted for good: {chats:,} chats with {messages:,} messages, and all that was learned from them."
        ).format(chats=chats, messages=messages)
        stays = _(" Your documents, models and backups stay.") + ("" if all_gone else _(_NOT_WHOLE))
        return self._views.everything(session) | self._views.tell(session, status.notice(gone + stays))

    def earlier(self, event: PageEvent) -> Update:
        """Draw more of the earlier messages of a long conversation."""
        event.session.drawn *= 2
        return self._views.conversation(event.session)

    def latest(self, event: PageEvent) -> Update:
        """Draw the latest messages of a long conversation."""
        event.session.drawn, event.session.until = page_sessions.DRAWN, None
        return self._views.conversation(event.session)

    def branch(self, event: PageEvent) -> Update:
        session = event.session
        if self._views.now(session) is None:
            self._service.chats.select_branch(session.user, event.id)
            session.until = None
        return self._unless_writing(session)

    def sources(self, event: PageEvent) -> Update:
        """Switch a reply between its tokens by source and its text."""
        if self._views.now(event.session) is None:
            event.session.marked ^= {event.id}
        return self._unless_writing(event.session)

    def details(self, event: PageEvent) -> Update:
        """Draw all figures of a reply, which the page has opened."""
        event.session.detailed.add(event.id)
        return self._views.conversation(event.session)

    def dismiss(self, event: PageEvent) -> Update:
        event.session.remark = event.session.note = event.session.about = ""
        return self._views.live(event.session)

    def stop(self, event: PageEvent) -> None:
        """Stop the reply on the screen. Sets an event and returns: the page draws the end when it comes."""
        if (reply := self._views.now(event.session)) is not None:
            reply.stop.set()

    def compare(self, event: PageEvent, on: bool) -> Update:
        """Switch comparing on or off; turned off, the conversation comes back."""
        box = gr.update(placeholder=_("Message both…") if on else _("Message…"))
        return {self._parts.box: box} | ({} if on else self.back(event))

    def choose_pair(self, event: PageEvent) -> Update:
        """Set the pair for the next comparison of this page."""
        given = parsed(event.text, dict)
        sides = {arm: of_type(given.get(arm), dict) for arm in comparison.ARMS}
        event.session.pair = {arm: comparison.Configuration.of(side) for arm, side in sides.items()}
        return {self._parts.setup: compare.line(event.session.pair)}

    def back(self, event: PageEvent) -> Update:
        """Return from the columns of a comparison to the conversation."""
        event.session.leave()
        return self._views.conversation(event.session)

    def _show(self, session: page_sessions.Session, wanted: int) -> None:
        """Put a conversation on the screen, if it exists, and remove its mark of a new reply on every page."""
        there = bool(wanted) and self._service.chats.has(session.user, wanted)
        session.conversation = wanted if there else None
        page_sessions.read_ahead(self._service, session)
        if there:
            self._service.chats.mark_read(session.user, wanted)
            session.remark = self._views.opening_remark(session)
            project = self._service.chats.get(session.user, wanted).project_id or session.unfolded
            if project != session.unfolded:
                session.unfolded, session.list_seen = project, page_sessions.UNKNOWN

    def _unless_writing(self, session: page_sessions.Session) -> Update:
        """Draw the conversation; while a reply is written there, say that nothing was done."""
        if self._views.now(session) is not None:
            self._views.tell(session, status.notice(_(status.LATER)))
        return self._views.conversation(session)


class ChatHandlers(HandlerGroup):
    """Handles the menu of a chat, and replies that the user edits."""

    def wire(self) -> None:
        handlers: dict[str, Callable[..., Update]] = {
            "hc_delete": self.delete, "hc_delete_copies": self.delete_copies, "hc_restore": self.restore,
            "hc_edit_reply": self.edit_reply,
        }  # fmt: skip
        for name, handler in handlers.items():
            self._page.on(name, handler, **EACH)
        self._page.on("hc_show_archived", self.show_archived)
        self._page.on("hc_fork", self.fork)
        self._page.on("hc_titled", self.titled)
        chats = self._service.chats
        acts: dict[str, Callable[[PageEvent], None]] = {
            "hc_rename": lambda event: chats.rename(event.user, event.id, event.text),
            "hc_pin": lambda event: chats.pin(event.user, event.id, event.data["on"]),
            "hc_archive": lambda event: chats.archive(event.user, event.id, event.data["on"]),
        }
        for name, act in acts.items():
            self._page.on(name, partial(self.change, name, act), **EACH)

    def change(self, name: str, act: Callable[[PageEvent], None], event: PageEvent) -> Update:
        """Apply `act` to a chat that the list or the head of the page shows. Of several of the same name, the one
        that was clicked last counts, in whatever order they arrive."""
        if event.session.overtaken(event.step, (name, event.id)):
            return {}
        act(event)
        return self._views.chats(event.session) | self._views.heading(event.session)

    def show_archived(self, event: PageEvent) -> Update:
        event.session.archived, event.session.listed = not event.session.archived, page_sessions.PAGE
        return self._views.chats(event.session)

    def delete(self, event: PageEvent) -> Update:
        """Delete a chat. For some seconds this can be undone."""
        session, gone = event.session, event.id
        if (deleted := self._service.chats.delete(event.user, gone)) is not None:
            session.undo = sidebar.undo_line(deleted)
        session.deleted_open = session.conversation == gone
        session.gone_from(gone)
        return self._views.everything(session) if session.deleted_open else self._views.chats(session)

    def delete_copies(self, event: PageEvent) -> Update:
        """Delete what was deleted last from the daily backups, too, for good."""
        session, session.undo = event.session, ""
        if self._service.chats.delete_from_backups(event.user):
            said = status.notice(_("Deleted for good, and from the daily backups."))
        else:
            said = status.error(
                _("A daily backup could not be rewritten. Run `hierchat forget --deleted` to try again.")
            )
        return self._views.chats(session) | self._views.tell(session, said)

    def restore(self, event: PageEvent) -> Update:
        """Undo the deletion of a chat, and show it if it was on the screen."""
        session = event.session
        try:
            self._service.chats.restore(event.user, event.id)
        except NotFound:
            session.undo = ""
            gone = status.error(_("That chat was deleted for good. It cannot be brought back."))
            return self._views.chats(session) | self._views.tell(session, gone)
        session.undo = ""
        if not session.deleted_open or session.conversation is not None:
            return self._views.chats(session)
        session.conversation = event.id
        return self._views.everything(session)

    def fork(self, event: PageEvent) -> Update:
        session = event.session
        if self._views.now(session) is not None:
            raise Remark(_(status.LATER), notice=True)
        session.leave()
        session.conversation = self._service.chats.fork(event.user, event.id)
        session.archived = False
        forked = status.notice(_("A copy of the chat up to that reply. The original stays as it was."))
        return self._views.everything(session) | self._views.tell(session, forked)

    def titled(self, event: PageEvent) -> Update:
        """Redraw titles: the page asks, some time after a reply, whether one has come."""
        session, came = event.session, self._service.titles.came(event.user)
        if came == session.titled:
            return {}
        session.titled = came
        self._service.changes.notify(event.user)
        return self._views.chats(session) | self._views.heading(session)

    def edit_reply(self, event: PageEvent) -> Update:
        """Store the user's version of a reply beside it; the chat goes on from there."""
        session = event.session
        if self._views.now(session) is not None:
            raise Remark(_(_WRITING), notice=True)
        self._service.chats.edit_reply(session.user, event.id, event.text)
        return self._views.everything(session)


class ProjectHandlers(HandlerGroup):
    """Handles the projects in the list of chats."""

    def wire(self) -> None:
        for name, handler in {
            "hc_project": self.unfold, "hc_project_save": self.save, "hc_project_delete": self.delete,
            "hc_project_restore": self.restore, "hc_move": self.move, "hc_project_new": self.begin,
        }.items():  # fmt: skip
            self._page.on(name, handler, **EACH)

    def unfold(self, event: PageEvent) -> Update:
        """Show the chats of a project below its name, in place of another's, or hide them again."""
        event.session.unfolded = None if event.session.unfolded == event.id else event.id
        return self._views.chats(event.session)

    def begin(self, event: PageEvent) -> Update:
        """Show an empty page for a new chat of a project, with its settings and its model."""
        session, models = event.session, self._service.models
        if event.overtaken:
            return {}
        model = self._service.projects.get(event.user, event.id).model
        session.leave()
        session.conversation, session.settings_of = None, page_sessions.UNKNOWN
        session.project = session.unfolded = event.id
        update: Update = {}
        if model in models.names and model != self._service.model_status.name:
            models.load(model)
            update = self._views.model(session) | {self._parts.timer: gr.Timer(active=True)}
        return self._views.step(session) | self._views.chats(session) | update

    def save(self, event: PageEvent) -> Update:
        """Store a project as its dialog has it; a new one (0) is unfolded."""
        said = EventFields(parsed(event.data["data"], dict))
        system, model, preset = str(said["system_prompt"]), str(said["model"]), whole(said["preset"])
        project = Project(event.id, event.data["name"], system, model, preset or None)
        saved = self._service.projects.save(event.user, project)
        event.session.unfolded = event.session.unfolded if event.id else saved
        session, views = event.session, self._views
        return views.chats(session) | views.heading(session) | views.documents(session)

    def move(self, event: PageEvent) -> Update:
        project = whole(event.data.get("text") or 0) or None
        self._service.projects.move(event.user, event.id, project)
        event.session.unfolded = project or event.session.unfolded
        return self._views.chats(event.session)

    def delete(self, event: PageEvent) -> Update:
        """Delete a project with its chats. For some seconds this can be undone."""
        session, chats = event.session, self._service.chats
        session.undo = sidebar.undo_line(chats.delete_project(event.user, event.id))
        shown, session.deleted_open = session.conversation, False
        if shown is not None and not chats.has(event.user, shown):
            session.gone_from(shown)
        return self._views.everything(session)

    def restore(self, event: PageEvent) -> Update:
        session, session.undo = event.session, ""
        try:
            self._service.chats.restore_project(event.user, event.id)
        except NotFound:
            gone = status.error(_("That project was deleted for good. It cannot be brought back."))
            return self._views.chats(session) | self._views.tell(session, gone)
        return self._views.chats(session)


class PresetHandlers(HandlerGroup):
    """Handles the panel of chat settings: stores changes; presets are chosen, saved, renamed, deleted. The
    chat whose settings it shows may not be on the screen any more."""

    def wire(self) -> None:
        on, p = self._page.on, self._parts
        shown, drawn = [p.controls], [*p.settings.fields, p.settings.tools]
        on("hc_notes", self.note, **EACH)
        on("hc_remember", self.remember, **EACH)
        on("hc_keep", self.keep, shown, drawn, trigger_mode="always_last")
        on("hc_settings_back", self.bring_back, outputs=[*drawn, p.bus])
        on(p.settings.preset.input, self.choose, [p.settings.preset, *shown], drawn)
        on("hc_preset_new", self.create, shown, drawn)
        presets = self._service.presets
        acts: dict[str, Callable[[PageEvent, ChatSettings], None]] = {
            "hc_preset_delete": lambda event, now: presets.delete(event.user, now.preset_id or 0),
            "hc_preset_save": lambda event, now: presets.change(event.user, now.preset_id or 0, now),
            "hc_preset_rename": lambda event, now: presets.rename(event.user, now.preset_id or 0, event.text),
            "hc_preset_default": lambda event, now: presets.set_default(
                event.user, now.preset_id if event.data["on"] else None
            ),
        }
        for name, act in acts.items():
            on(name, partial(self.change, act, keeps=name != "hc_preset_delete"), shown, drawn)

    def keep(self, event: PageEvent) -> Update:
        try:
            settings = chat_settings.read(event.controls.settings)
        except InvalidSettings:  # still being typed; who sends it is told
            return {}
        return self._let(event, settings) | self._views.settled(event.session, SETTINGS)

    def note(self, event: PageEvent) -> Update:
        """Store the user's notes about themselves, as they were typed here or in the settings."""
        self._service.users.set_notes(event.user, event.text)
        event.session.settings_seen = self._service.changes.notify_settings(event.user)
        return self._views.settled(event.session, SETTINGS)

    def remember(self, event: PageEvent) -> Update:
        """Add the text selected in a reply to the user's notes."""
        users, about = self._service.users, self._parts.settings.about
        users.set_notes(event.user, f"{users.notes(event.user)}\n- {' '.join(event.text.split())}")
        event.session.settings_seen = self._service.changes.notify_settings(event.user)
        said = _(
            "Added to your notes, which the model sees in every chat. You can change them in Chat settings."
        )
        return {about: users.notes(event.user)} | self._views.tell(event.session, status.notice(said))

    def bring_back(self, event: PageEvent) -> Update:
        """Restore the settings of a chat that is not stored yet, after the page was loaded again."""
        stored, settings = event.session.conversation, chat_settings.noted(event.text)
        if stored is not None or settings is None:
            return {}
        presets = self._service.presets.all(event.user)
        drawn = chat_settings.drawn(self._parts.settings, presets, settings, stored=False)
        return drawn | {self._parts.bus: f"{event.session.key} 0 back"}  # the fields come with this answer

    def choose(self, event: PageEvent, chosen: Any) -> Update:
        """Set this chat's preset, or none: then the model's own values."""
        settings = self._service.chats.model_settings()
        if wanted := whole(chosen or 0):
            settings = self._service.presets.get(event.user, wanted).settings
        return self._done(event, settings, fields=True)

    def create(self, event: PageEvent) -> Update:
        settings = chat_settings.read(event.controls.settings)
        preset = self._service.presets.create(event.user, event.text, settings)
        return self._done(event, replace(settings, preset_id=preset))

    def change(
        self, act: Callable[[PageEvent, ChatSettings], None], event: PageEvent, *, keeps: bool
    ) -> Update:
        """Apply `act` to the preset of the chat, which `keeps` it, or else its settings alone."""
        settings = chat_settings.read(event.controls.settings)
        if settings.preset_id is not None:
            act(event, settings)
        return self._done(event, settings if keeps else replace(settings, preset_id=None))

    def _done(self, event: PageEvent, settings: ChatSettings, *, fields: bool = False) -> Update:
        """Store the settings as `_let` does, and clear the remark about an earlier failure."""
        event.session.remark = ""
        event.session.settings_seen = self._service.changes.settings_changed(event.user)
        return self._let(event, settings, fields=fields)

    def _let(self, event: PageEvent, settings: ChatSettings, *, fields: bool = False) -> Update:
        """Store the settings of the panel's chat, and redraw the panel if that chat is still on the screen."""
        session, chat = event.session, chat_settings.number(event.controls.shown)
        if chat:
            chat_settings.keep(self._service, session, chat, settings)
        if chat != (session.conversation or 0):
            return {}
        presets = self._service.presets.all(event.user)
        drawn = chat_settings.drawn(self._parts.settings, presets, settings, fields=fields, stored=bool(chat))
        return drawn | self._views.live(session)


class DocumentHandlers(HandlerGroup):
    """Handles the documents of the open chat: files and folders are added, one is removed."""

    def wire(self) -> None:
        documents, settings = self._service.documents, self._parts.settings
        acts: dict[str, Callable[[PageEvent], object]] = {
            "hc_documents_add": self.add_path,
            "hc_documents_files": self.add_files,
            "hc_project_files": partial(self.add_files, to_project=True),
            "hc_documents_stop": self.stop,
            "hc_documents_removed": lambda event: documents.delete(event.user, event.id),
        }
        for name, act in acts.items():
            self._page.on(name, partial(self.answer, act))
        drawn = [settings.documents, settings.reading, self._parts.project]
        self._page.on(
            settings.reading.tick, lambda event: self._views.documents(event.session), outputs=drawn
        )

    def answer(self, act: Callable[[PageEvent], object], event: PageEvent) -> Update:
        """Run `act`, and redraw the chat and its documents, with the error if there is one."""
        said = ""
        try:
            act(event)
        except (CorpusError, OwnerOnly, TicketExpired) as error:
            said = status.error(str(error))
        return self._views.everything(event.session) | self._views.documents(event.session, said)

    def stop(self, event: PageEvent) -> None:
        """Stop reading documents: one that is not whole yet is removed."""
        if reading := self._service.documents.readings.get(event.user):
            reading.stop.set()

    def add_path(self, event: PageEvent) -> None:
        require_owner(self._service, event.user)
        self._read(event, [named_path(event.text)], ours=False)

    def add_files(self, event: PageEvent, *, to_project: bool = False) -> None:
        """Read uploaded files: those of a folder into one document, named after it. `to_project`: whose page they were
        dropped on."""
        folder, named = event.folder_of_files(), files.place(event.text)
        if not (folder / named.name).exists():  # they were dropped in a folder of that name
            folder = folder.rename(named).parent
        self._read(event, sorted(folder.iterdir()), ours=True, to_project=to_project)

    def _read(self, event: PageEvent, paths: Sequence[Path], *, ours: bool, to_project: bool = False) -> None:
        session, documents = event.session, self._service.documents
        if to_project and session.project is not None:
            documents.read(event.user, None, paths, to_project=True, ours=ours, project=session.project)
            return
        chat, shared = page_sessions.open_conversation(self._service, session), event.data.get("on")
        documents.read(event.user, chat, paths, to_project=bool(shared), ours=ours)


GROUPS = (PageHandlers, ChatHandlers, ProjectHandlers, PresetHandlers, DocumentHandlers)
