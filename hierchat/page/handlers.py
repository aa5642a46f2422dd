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
from hierchat.page import chat_settings, conversation, page_sessions, sidebar, status
from hierchat.page.chat_settings import InvalidSettings
from hierchat.page.event_data import EventFields, PageEvent, of_type, parsed, whole
from hierchat.page.guard import EACH, HandlerGroup, OwnerOnly, Remark, require_owner
from hierchat.page.screen import DRAWN, PAGE
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
        on("hc_fetch", lambda event: None, **EACH)
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

    def load(self, event: PageEvent) -> None:
        """Show a page that opens: the conversation in its address, if this user has it, or the panel."""
        request = event.request
        self._page.sessions.open(request.session_hash)
        page_sessions.forget_stragglers(self._page.app, self._page.sessions)
        self._page.users.pop(request.username or LOCAL_USER, None)  # may have been forgotten since
        session, user = event.session, event.user
        session.drawn_from = {}
        at_address = self._views.at_address(user, request.query_params)
        self._open(session, at_address.conversation)
        session.show(panel=at_address.panel, query="")
        if request.query_params.get("c") and session.screen.conversation is None:
            gone = status.error(_("There is no chat at this address. It may have been deleted."))
            self._views.tell(session, gone)

    def rest(self, event: PageEvent) -> None:
        """Keep a page whose stream ends now, because nobody sees it."""
        event.session.rests = True

    def new(self, event: PageEvent) -> None:
        """Show an empty page; a conversation is stored with its first message."""
        if event.overtaken:
            return
        event.session.leave(conversation=None, project=None)
        event.session.settings_of = page_sessions.UNKNOWN
        page_sessions.read_ahead(self._service, event.session)

    def open(self, event: PageEvent) -> None:
        """Open a conversation from the list; with a hit of the search, the branch that holds it."""
        session, user, chats = event.session, event.user, self._service.chats
        if event.overtaken:
            return
        wanted, hit = event.id, str(event.data.get("text", ""))
        chats.get(user, wanted)  # it may have been deleted elsewhere: stay where we are
        session.leave()
        self._open(session, wanted)
        if hit and self._views.now(session) is None:
            path = [message.id for message in chats.messages(user, wanted)]
            if whole(hit) not in path:
                chats.select_branch(user, whole(hit))
                path = [message.id for message in chats.messages(user, wanted)]
            if whole(hit) in path[:-DRAWN]:  # of a long chat the part that holds it is drawn
                session.show(until=path[path.index(whole(hit)) + DRAWN // 2])

    def go(self, event: PageEvent) -> None:
        """Follow the browser's Back and Forward: show the conversation open then, or the empty page for 0."""
        session = event.session
        if event.overtaken:
            return
        session.leave()
        self._open(session, event.id)
        if event.id and session.screen.conversation is None:
            self._views.tell(session, status.notice(_("The chat that was open here has been deleted.")))

    def panel(self, event: PageEvent) -> Update | None:
        """Open a panel in place of the conversation, whose reply goes on."""
        return None if event.overtaken else self._views.open_panel(event.session, event.text)

    def search(self, event: PageEvent, query: str) -> None:
        event.session.show(query=query, listed=PAGE)

    def more(self, event: PageEvent) -> None:
        """List more conversations, since the user comes near the end of the list."""
        event.session.show(listed=event.session.screen.listed + PAGE)

    def incognito(self, event: PageEvent) -> None:
        event.session.show(incognito=not event.session.screen.incognito)
        if event.session.screen.incognito:  # files that were attached before are read already
            self._service.forget_read_ahead(event.user)

    def keep_incognito(self, event: PageEvent) -> None:
        session = event.session
        if (kept := session.screen.incognito_chat) is not None:
            self._service.chats.keep_incognito(session.user, kept)
            session.show(incognito_chat=None)

    def forget(self, event: PageEvent) -> None:
        """Delete all that is stored of this user, and say how much it was."""
        session, user, screen = event.session, event.user, event.session.screen
        session.show(conversation=None)
        chats, messages = self._service.users.counts(user)
        all_gone = self._service.forget_user(user)
        self._page.users.pop(session.name, None)
        # The open panel is drawn anew
        session.show(undo="", marked=frozenset(), visit=screen.visit + 1)
        self._service.changes.notify(user)
        self._service.changes.notify(self._page.session_of(event.request).user)
        gone = _(
            "Deleted for good: {chats:,} chats with {messages:,} messages, and all that was learned from them."
        ).format(chats=chats, messages=messages)
        stays = _(" Your documents, models and backups stay.") + ("" if all_gone else _(_NOT_WHOLE))
        self._views.tell(session, status.notice(gone + stays))

    def earlier(self, event: PageEvent) -> None:
        """Show more of the earlier messages of a long conversation."""
        event.session.show(drawn=2 * event.session.screen.drawn)

    def latest(self, event: PageEvent) -> None:
        """Show the latest messages of a long conversation."""
        event.session.show(drawn=DRAWN, until=None)

    def branch(self, event: PageEvent) -> None:
        session = event.session
        self._refuse_while_writing(session)
        self._service.chats.select_branch(session.user, event.id)
        session.show(until=None)

    def sources(self, event: PageEvent) -> None:
        """Switch a reply between its tokens by source and its text."""
        self._refuse_while_writing(event.session)
        event.session.show(marked=event.session.screen.marked ^ {event.id})

    def details(self, event: PageEvent) -> None:
        """Show all figures of a reply, which the page has opened."""
        event.session.show(detailed=event.session.screen.detailed | {event.id})

    def dismiss(self, event: PageEvent) -> None:
        event.session.show(remark="", note="")

    def stop(self, event: PageEvent) -> None:
        """Stop the reply on the screen. Sets an event and returns: the page draws the end when it comes."""
        if (reply := self._views.now(event.session)) is not None:
            reply.stop.set()

    def compare(self, event: PageEvent, on: bool) -> Update:
        """Switch comparing on or off; turned off, the conversation comes back."""
        if not on:
            self.back(event)
        return {self._parts.box: gr.update(placeholder=_("Message both…") if on else _("Message…"))}

    def choose_pair(self, event: PageEvent) -> Update:
        """Set the pair for the next comparison of this page."""
        given = parsed(event.text, dict)
        sides = {arm: of_type(given.get(arm), dict) for arm in comparison.ARMS}
        pair = {
            arm: comparison.Configuration(str(side.get("model") or ""), bool(side.get("drafts", True)))
            for arm, side in sides.items()
        }
        event.session.show(pair=pair)
        return {self._parts.setup: conversation.pair_line(pair)}

    def back(self, event: PageEvent) -> None:
        """Return from the columns of a comparison to the conversation."""
        event.session.leave()

    def _open(self, session: page_sessions.Session, wanted: int | None) -> None:
        """Show a conversation, if it exists, and remove its mark of a new reply on every page."""
        there = wanted if wanted and self._service.chats.has(session.user, wanted) else None
        session.show(conversation=there)
        page_sessions.read_ahead(self._service, session)
        if there:
            self._service.chats.mark_read(session.user, there)
            project = self._service.chats.get(session.user, there).project_id
            session.show(unfolded=project or session.screen.unfolded)


class ChatHandlers(HandlerGroup):
    """Handles the menu of a chat, and replies that the user edits."""

    def wire(self) -> None:
        handlers: dict[str, Callable[[PageEvent], None]] = {
            "hc_delete": self.delete, "hc_delete_copies": self.delete_copies, "hc_restore": self.restore,
            "hc_edit_reply": self.edit_reply,
        }  # fmt: skip
        for name, handler in handlers.items():
            self._page.on(name, handler, **EACH)
        self._page.on("hc_show_archived", self.show_archived)
        self._page.on("hc_fork", self.fork)
        chats = self._service.chats
        acts: dict[str, Callable[[PageEvent], None]] = {
            "hc_rename": lambda event: chats.rename(event.user, event.id, event.text),
            "hc_pin": lambda event: chats.pin(event.user, event.id, event.data["on"]),
            "hc_archive": lambda event: chats.archive(event.user, event.id, event.data["on"]),
        }
        for name, act in acts.items():
            self._page.on(name, partial(self.change, name, act), **EACH)

    def change(self, name: str, act: Callable[[PageEvent], None], event: PageEvent) -> None:
        """Apply `act` to a chat that the list or the head of the page shows. Of several of the same name, the one
        that was clicked last counts, in whatever order they arrive."""
        if not event.session.overtaken(event.step, (name, event.id)):
            act(event)

    def show_archived(self, event: PageEvent) -> None:
        event.session.show(archived=not event.session.screen.archived, listed=PAGE)

    def delete(self, event: PageEvent) -> None:
        """Delete a chat. For some seconds this can be undone."""
        session, gone = event.session, event.id
        if (deleted := self._service.chats.delete(event.user, gone)) is not None:
            session.show(undo=sidebar.undo_line(deleted))
        else:  # it was gone already: the list is old
            session.drawn_from = {}
        session.show(deleted_open=session.screen.conversation == gone)
        session.gone_from(gone)

    def delete_copies(self, event: PageEvent) -> None:
        """Delete what was deleted last from the daily backups, too, for good."""
        event.session.show(undo="")
        if self._service.chats.delete_from_backups(event.user):
            said = status.notice(_("Deleted for good, and from the daily backups."))
        else:
            said = status.error(
                _("A daily backup could not be rewritten. Run `hierchat forget --deleted` to try again.")
            )
        self._views.tell(event.session, said)

    def restore(self, event: PageEvent) -> None:
        """Undo the deletion of a chat, and show it if it was on the screen."""
        session = event.session
        session.show(undo="")
        try:
            self._service.chats.restore(event.user, event.id)
        except NotFound as error:
            raise Remark(_("That chat was deleted for good. It cannot be brought back.")) from error
        if session.screen.deleted_open and session.screen.conversation is None:
            session.show(conversation=event.id)

    def fork(self, event: PageEvent) -> None:
        session = event.session
        self._refuse_while_writing(session)
        session.leave(conversation=self._service.chats.fork(event.user, event.id), archived=False)
        forked = status.notice(_("A copy of the chat up to that reply. The original stays as it was."))
        self._views.tell(session, forked)

    def edit_reply(self, event: PageEvent) -> None:
        """Store the user's version of a reply beside it; the chat goes on from there."""
        self._refuse_while_writing(event.session, _WRITING)
        self._service.chats.edit_reply(event.user, event.id, event.text)


class ProjectHandlers(HandlerGroup):
    """Handles the projects in the list of chats."""

    def wire(self) -> None:
        for name, handler in {
            "hc_project": self.unfold, "hc_project_save": self.save, "hc_project_delete": self.delete,
            "hc_project_restore": self.restore, "hc_move": self.move, "hc_project_new": self.begin,
        }.items():  # fmt: skip
            self._page.on(name, handler, **EACH)

    def unfold(self, event: PageEvent) -> None:
        """Show the chats of a project below its name, in place of another's, or hide them again."""
        open_one = event.session.screen.unfolded
        event.session.show(unfolded=None if open_one == event.id else event.id)

    def begin(self, event: PageEvent) -> Update | None:
        """Show an empty page for a new chat of a project, with its settings and its model."""
        session, models = event.session, self._service.models
        if event.overtaken:
            return None
        model = self._service.projects.get(event.user, event.id).model
        session.leave(conversation=None, project=event.id, unfolded=event.id)
        session.settings_of = page_sessions.UNKNOWN
        if model not in models.names or model == self._service.model_status.name:
            return None
        models.load(model)
        session.model_looks += 1
        return {self._parts.timer: gr.Timer(active=True)}

    def save(self, event: PageEvent) -> None:
        """Store a project as its dialog has it; a new one (0) is unfolded."""
        said = EventFields(parsed(event.data["data"], dict))
        system, model, preset = str(said["system_prompt"]), str(said["model"]), whole(said["preset"])
        project = Project(event.id, event.data["name"], system, model, preset or None)
        saved = self._service.projects.save(event.user, project)
        if not event.id:
            event.session.show(unfolded=saved)

    def move(self, event: PageEvent) -> None:
        project = whole(event.data.get("text") or 0) or None
        self._service.projects.move(event.user, event.id, project)
        event.session.show(unfolded=project or event.session.screen.unfolded)

    def delete(self, event: PageEvent) -> None:
        """Delete a project with its chats. For some seconds this can be undone."""
        session, chats = event.session, self._service.chats
        deleted = chats.delete_project(event.user, event.id)
        session.show(undo=sidebar.undo_line(deleted), deleted_open=False)
        shown = session.screen.conversation
        if shown is not None and not chats.has(event.user, shown):
            session.gone_from(shown)

    def restore(self, event: PageEvent) -> None:
        event.session.show(undo="")
        try:
            self._service.chats.restore_project(event.user, event.id)
        except NotFound as error:
            raise Remark(_("That project was deleted for good. It cannot be brought back.")) from error


class PresetHandlers(HandlerGroup):
    """Handles the panel of chat settings: stores changes; presets are chosen, saved, renamed, deleted. The
    chat whose settings it shows may not be on the screen any more."""

    def wire(self) -> None:
        on, p = self._page.on, self._parts
        shown, drawn = [p.controls], [*p.settings.fields, p.settings.tools]
        on("hc_notes", self.note, **EACH)
        on("hc_keep", self.keep, shown, drawn, trigger_mode="always_last")
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
        return self._let(event, settings)

    def note(self, event: PageEvent) -> None:
        """Store the user's notes about themselves, as they were typed here or in the settings."""
        self._service.users.set_notes(event.user, event.text)
        event.session.settings_seen = self._service.changes.notify_settings(event.user)

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
        event.session.show(remark="")
        event.session.settings_seen = self._service.changes.settings_changed(event.user)
        return self._let(event, settings, fields=fields)

    def _let(self, event: PageEvent, settings: ChatSettings, *, fields: bool = False) -> Update:
        """Store the settings of the panel's chat, and redraw the panel if that chat is still on the screen."""
        session, chat = event.session, chat_settings.number(event.controls.shown)
        if chat:
            chat_settings.keep(self._service, session, chat, settings)
        if chat != (session.screen.conversation or 0):
            return {}
        presets = self._service.presets.all(event.user)
        return chat_settings.drawn(self._parts.settings, presets, settings, fields=fields)


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
        self._page.on(settings.reading.tick, lambda event: None, outputs=[settings.reading])

    def answer(self, act: Callable[[PageEvent], object], event: PageEvent) -> None:
        """Run `act`. If it fails, show the reason next to the documents."""
        event.session.show(said_of_documents="")
        try:
            act(event)
        except (CorpusError, OwnerOnly, TicketExpired) as error:
            event.session.show(said_of_documents=status.error(str(error)))

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
        project = event.session.screen.project if to_project else None
        chat = None if project else page_sessions.open_conversation(self._service, event.session)
        shared = bool(project or event.data.get("on"))
        self._service.documents.read(event.user, chat, paths, to_project=shared, ours=ours, project=project)


GROUPS = (PageHandlers, ChatHandlers, ProjectHandlers, PresetHandlers, DocumentHandlers)
