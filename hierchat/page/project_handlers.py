"""Handle events of projects: unfold, save, delete and restore, move chats, begin a new one."""

import gradio as gr

from hierchat.language import _
from hierchat.page import sidebar, status
from hierchat.page.event_data import EventFields, PageEvent, parsed, whole
from hierchat.page.guard import HandlerGroup
from hierchat.page.page_sessions import UNKNOWN
from hierchat.page.views import Update
from hierchat.store import NotFound
from hierchat.store.records import Project


class ProjectHandlers(HandlerGroup):
    """Handles the projects in the list of chats."""

    def wire(self) -> None:
        for name, handler in {
            "hc_project": self.unfold, "hc_project_new": self.begin, "hc_project_save": self.save,
            "hc_project_delete": self.delete, "hc_project_restore": self.restore, "hc_move": self.move,
        }.items():  # fmt: skip
            self._page.on(name, handler)

    def unfold(self, event: PageEvent) -> Update:
        """Show the chats of a project below its name, in place of another's, or hide them again."""
        event.session.unfolded = None if event.session.unfolded == event.id else event.id
        return self._views.chats(event.session)

    def begin(self, event: PageEvent) -> Update:
        """Show an empty page for a new chat of a project, with its settings and its model."""
        session, models = event.session, self._service.models
        model = self._service.projects.get(event.user, event.id).model
        session.leave()
        session.conversation, session.settings_of = None, UNKNOWN
        session.project = session.unfolded = event.id
        update: Update = {}
        if model in models.names and model != self._service.model_status.name:
            models.load(model)
            update = self._views.model() | {self._parts.timer: gr.Timer(active=True)}
        return self._views.everything(session) | update

    def save(self, event: PageEvent) -> Update:
        """Store a project as its dialog has it; a new one (0) is unfolded."""
        said = EventFields(parsed(event.data["data"], dict))
        system, model, preset = str(said["system_prompt"]), str(said["model"]), whole(said["preset"])
        project = Project(event.id, event.data["name"], system, model, preset or None)
        saved = self._service.projects.save(event.user, project)
        event.session.unfolded = event.session.unfolded if event.id else saved
        return self._views.chats(event.session) | self._views.heading(event.session)

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
