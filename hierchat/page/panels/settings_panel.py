"""Run the panel of settings: how the page looks, what may draft, when replies end, where data lies, deletion."""

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from threading import Event
from typing import Any, TypeVar

import gradio as gr

from hierchat.access.files import files
from hierchat.access.login_sessions import LoginSession, LoginSessions
from hierchat.chat.service import ChatService
from hierchat.chat.tools import ToolError, mcp_file, read_servers
from hierchat.checks.prove import Proving
from hierchat.config import cache_dir, data_dir
from hierchat.connections import attempts
from hierchat.language import NAMES, _, catalogues, error_words, later, plural
from hierchat.models.cache import gigabytes, size_of
from hierchat.page import status
from hierchat.page.chat_settings import notes_box
from hierchat.page.event_data import PageEvent
from hierchat.page.guard import PageEvents, require_owner
from hierchat.page.page_sessions import Session
from hierchat.page.panels.documents_panel import DocumentsPart
from hierchat.page.panels.panel import Panel, PanelPart
from hierchat.page.sidebar import GUEST, is_guest, moment
from hierchat.page.templates import KEY, Macros, button
from hierchat.store import Access
from hierchat.store.records import DraftsFrom
from hierchat.texts.corpora import corpora_dir
from hierchat.texts.exporting import file_name
from hierchat.texts.importing import KNOWN

_NOW_SECONDS = 60.0
"""An open page asks for news once a second, or, in the background, once a minute."""


class LoginsPart(PanelPart):
    """Part for the user's own account, and, for the owner, who is connected: if there is a login."""

    def __init__(self, service: ChatService, log_ins: LoginSessions | None) -> None:
        super().__init__(service)
        self._log_ins = log_ins

    def build(self) -> None:
        self._password = gr.HTML("", elem_id="hc-password")
        self._list = gr.HTML("", elem_id="hc-connected")
        self.outputs = [self._password, self._list]

    def wire(self, page: PageEvents) -> None:

        def end(event: PageEvent) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            told = _("It had ended already.")
            if self._log_ins and (ended := self._log_ins.end_of(event.text)):
                name = _shown_name(ended)
                told = _("The session of {name} has ended.").format(name=name)
            page.views.tell(event.session, status.notice(told))
            return self.show(event.session)

        page.on("hc_end_session", end, outputs=self.outputs)

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw the link to the user's password; for the owner, also everybody who is logged in."""
        if self._log_ins is None:
            return dict.fromkeys(self.outputs, "")
        owner = self._service.users.is_owner(session.user)
        return {
            self._password: "" if is_guest(session.name) else _drawn.account(session.name),
            self._list: _drawn.connected(self._log_ins.connected(), time.time()) if owner else "",
        }


def _shown_name(session: LoginSession) -> str:
    return session.name if session.member.account else GUEST


_CHOICES: tuple[tuple[str, Access], ...] = (
    (later("Off"), "off"),
    (later("With a key"), "keys"),
    (later("Any program on this computer"), "open"),
)


class ProgramsPart(PanelPart):
    """Part for the endpoint's switch and keys: for the owner alone."""

    def build(self) -> None:
        self._about = gr.HTML("", elem_id="hc-programs-about")
        self._access = _choice(_CHOICES, _("Programs that may use the model"), "hc-programs")
        self._keys = gr.HTML("", elem_id="hc-program-keys")
        self.outputs = [self._about, self._access, self._keys]

    def wire(self, page: PageEvents) -> None:

        def choose(event: PageEvent, chosen: Access) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            self._service.keys.set_access(chosen)
            return self.show(event.session)

        page.on(self._access.input, choose, [self._access], self.outputs)

    def show(self, session: Session) -> dict[Any, Any]:
        if not self._service.users.is_owner(session.user):
            return {self._about: "", self._access: gr.update(visible="hidden"), self._keys: ""}
        access = self._service.keys.access()
        return {
            self._about: _drawn.programs(),
            self._access: gr.update(value=access, visible=True),
            self._keys: "" if access == "off" else _drawn.keys(self._service.keys.all()),
        }


class ToolsPart(PanelPart):
    """Part for the tool servers of mcp.json, each with a switch and a try: for the owner alone."""

    def build(self) -> None:
        self._servers = gr.HTML("", elem_id="hc-tool-servers")
        self._tried = gr.HTML("", elem_id="hc-tools-tried")
        self.outputs = [self._servers, self._tried]

    def wire(self, page: PageEvents) -> None:

        def switch(event: PageEvent) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            self._service.tools.switch(event.user, event.text, bool(event.id))
            return self.show(event.session)

        def look(event: PageEvent) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            try:
                return {self._tried: _drawn.tried(self._service.tools.tools(event.text, Event()))}
            except ToolError as error:
                return {self._tried: status.error(str(error))}

        page.on("hc_tools_on", switch, outputs=self.outputs)
        page.on("hc_tools_try", look, outputs=self.outputs)

    def show(self, session: Session) -> dict[Any, Any]:
        if not self._service.users.is_owner(session.user):
            return dict.fromkeys(self.outputs, "")
        try:
            on, named, trouble = self._service.users.tool_servers(session.user), read_servers(), ""
        except ToolError as error:
            on, named, trouble = set(), {}, status.error(str(error))
        return {self._servers: _drawn.tool_servers(named, on, mcp_file(), trouble), self._tried: ""}


class ProofPart(PanelPart):
    """Part with the last result and a button for another run, which goes on in the background for all pages."""

    def __init__(self, service: ChatService) -> None:
        super().__init__(service)
        self._proving = Proving(service.data.path.parent / "proof.json")

    def build(self) -> None:
        self._connections = gr.HTML("", elem_id="hc-connections")
        self._state = gr.HTML("", elem_id="hc-proof")
        with gr.Row(elem_classes="hc-buttons"):
            self._prove = gr.Button(_("Prove it"), elem_id="hc-prove", size="sm", scale=0, min_width=0)
        self._timer = gr.Timer(1.0, active=False)
        self.outputs = [self._connections, self._state, self._prove, self._timer]

    def wire(self, page: PageEvents) -> None:

        def prove(event: PageEvent) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            self._proving.start(self._service.model_status.name)
            return self.show(event.session)

        page.on(self._prove.click, prove, outputs=self.outputs)
        page.on(self._timer.tick, lambda event: self.show(event.session), outputs=self.outputs)

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw the connections so far, and the last result or what is checked now; the timer runs only meanwhile."""
        if not self._service.users.is_owner(session.user):
            hidden = {self._prove: gr.update(visible="hidden"), self._timer: gr.update(active=False)}
            return hidden | {self._connections: "", self._state: ""}
        proving, doing = self._proving, self._proving.doing
        return {
            self._connections: _drawn.connections(attempts()),
            self._state: _drawn.proof(proving.last, doing, proving.trouble),
            self._prove: gr.update(visible=True, interactive=not doing),
            self._timer: gr.update(active=bool(doing) and session.screen.panel == "settings"),
        }


# Import and export of chats: their part, and what its buttons and those of a chat's menu do.
T = TypeVar("T")
_transfer = Macros("transfer.html", KNOWN_EXPORTS=KNOWN)
SHOW_SECONDS = 0.25
"""Between two looks at how far it is."""
MOST_FILES = 200


class TransferPart(PanelPart):
    """Part that imports and exports chats."""

    def build(self) -> None:
        gr.HTML(_transfer.transfer(), elem_id="hc-transfer")
        self._state = gr.HTML("", elem_id="hc-transfer-state")
        self._out = gr.HTML("", elem_id="hc-out")
        """Where a finished export can be fetched: the page does that at once."""
        self.outputs = [self._state, self._out]

    def wire(self, page: PageEvents) -> None:
        page.on("hc_import", self.bring_in, outputs=[], slow=True, trigger_mode="multiple")
        page.on("hc_import_stop", lambda event: event.session.importing.set(), outputs=[], apart=True)
        page.on("hc_export", self.bring_out, outputs=[], slow=True, trigger_mode="multiple")

    def bring_in(self, event: PageEvent) -> None:
        session, user, state, data = event.session, event.user, self._state, self._service.data
        with event.files(MOST_FILES) as paths:
            importing = data.importing(user, paths)
            session.importing = importing.stop
            for _step in _now_and_then(importing):
                event.draw({state: _transfer.importing(importing)})
        data.imported(user, importing)
        event.draw({state: _transfer.outcome(importing)})

    def bring_out(self, event: PageEvent) -> None:
        """Export one chat, all for 0, or a project with its own, as a file that the page downloads."""
        user, wanted, markdown = event.user, event.id, event.text == "markdown"
        project = wanted if event.text == "project" else None
        if project:
            wanted, name = 0, f"{self._service.projects.get(user, project).name.replace('/', ' ')}.json"
        elif not wanted:
            name = "hierchat chats.zip" if markdown else "hierchat chats.json"
        else:
            chat = self._service.chats.get(user, wanted)
            title = chat.title.replace("/", " ") or "Chat"
            name = file_name(chat, set()) if markdown else f"{title}.json"
        place = files.place(name)
        total, written = self._service.data.exporting(
            user, place, markdown=markdown, chat=wanted or None, project=project
        )
        count = 0
        try:
            for count in _now_and_then(written):
                if not wanted:
                    progress = _transfer.progress(_("Exporting chats"), count, count, total)
                    event.draw({self._state: progress})
            ticket = files.hold(place, event.session.name)
        except BaseException:
            files.remove(place)
            raise
        link = f'<a href="transfer/out/{ticket}" data-key="{KEY}"></a>'
        told = status.notice(_("{count} exported.").format(count=plural("{n:,} chat", "{n:,} chats", count)))
        event.draw({self._out: link} | ({} if wanted else {self._state: told}))


def _now_and_then(steps: Iterable[T]) -> Iterator[T]:
    """Run through all steps; yield one as often as a reader can follow, and the last."""
    shown = time.monotonic()
    left: list[T] = []
    for one in steps:
        left = [one]
        if time.monotonic() - shown >= SHOW_SECONDS:
            shown = time.monotonic()
            yield left.pop()
    yield from left


_DRAFTS: tuple[tuple[str, DraftsFrom], ...] = (
    (later("All of my chats and texts (fastest)"), "all"),
    (later("Only the chat itself"), "chat"),
    (later("Nothing (slowest)"), "none"),
)


class SettingsPanel(Panel):
    """Panel of settings. Those of the machine are shown to its owner alone."""

    name = "settings"
    title = later("Settings")

    def __init__(self, service: ChatService, log_ins: LoginSessions | None) -> None:
        self._service = service
        self._texts = DocumentsPart(service)
        logins = LoginsPart(service, log_ins)
        self._further = [TransferPart(service), logins, ProgramsPart(service), ToolsPart(service)]
        self._proofs = ProofPart(service)
        self._inside = [self._texts, *self._further, self._proofs]

    def build(self) -> None:
        if len(catalogues()) > 1:
            gr.HTML(_drawn.language(catalogues()))
        gr.HTML(_drawn.theme())
        gr.HTML(_drawn.drafts())
        self._drafts = _choice(_DRAFTS, _("Drafts may come from"), "hc-drafts-from")
        self._texts.build()
        self._proof = gr.HTML("", elem_id="hc-model-proof")
        gr.HTML(_drawn.notes())
        self._notes = notes_box(3, show_label=False, container=False)
        gr.HTML(f"<h2>{_('Chats')}</h2>")
        self._titles = gr.Checkbox(
            True, label=_("The model names new chats, while nobody waits for it"), container=False
        )
        self._reads = gr.Checkbox(
            True,
            label=_("Opened chats and attached files are read before you send, while nobody waits"),
            container=False,
            elem_id="hc-reads-ahead",
        )
        for part in self._further:
            part.build()
        gr.HTML(f"<h2>{_('Your data')}</h2>")
        self._places = gr.HTML("", elem_id="hc-places")
        with gr.Row(elem_classes="hc-buttons"):
            self._backup = gr.Button(_("Back up now"), elem_id="hc-backup", size="sm", scale=0, min_width=0)
        self._proofs.build()
        self._forget = gr.HTML("", elem_id="hc-forget")
        self._told = gr.HTML("", elem_id="hc-settings-told")
        own = [self._drafts, self._notes, self._proof, self._titles]
        own += [self._reads, self._places, self._backup, self._forget]
        self.outputs = [*own, self._told, *(output for part in self._inside for output in part.outputs)]

    def wire(self, page: PageEvents) -> None:
        users, data, told = self._service.users, self._service.data, self._told

        def keep(column: str, event: PageEvent, chosen: Any) -> dict[Any, Any]:
            users.choose(event.user, **{column: chosen})
            return {told: ""}

        def read_ahead(event: PageEvent, chosen: Any) -> dict[Any, Any]:
            self._service.choose_reading_ahead(event.user, on=chosen)
            return {told: ""}

        def backup(event: PageEvent) -> dict[Any, Any]:
            require_owner(self._service, event.user)
            path = data_dir() / "backups" / time.strftime("hierchat-%Y-%m-%d-%H%M%S.db")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            data.backup(path)
            said = _("Copied to {path}, {size}, and checked.")
            return {told: status.notice(said.format(path=path, size=gigabytes(path.stat().st_size)))}

        for part in self._inside:
            part.wire(page)
        for column, control in {"drafts_from": self._drafts, "model_titles": self._titles}.items():
            page.on(control.input, partial(keep, column), [control], [told])
        page.on(self._reads.input, read_ahead, [self._reads], [told])
        page.on(self._backup.click, backup, outputs=[told])

    def show(self, session: Session) -> dict[Any, Any]:
        """Draw the user's settings and data. Where data lies, and what all users share, is for the owner alone."""
        user, users = session.user, self._service.users
        owner = users.is_owner(user)
        chats, messages = users.counts(user)
        held = plural(
            "{n:,} chat with {messages:,} messages", "{n:,} chats with {messages:,} messages", chats, messages=messages
        )  # fmt: skip
        there = chats or users.notes(user) or self._service.projects.all(user)
        update = {
            self._drafts: users.drafts_from(user),
            self._notes: users.notes(user),
            self._proof: status.model_proof(self._service.model_status),
            self._titles: bool(users.chosen(user, "model_titles", False)),
            self._reads: bool(users.chosen(user, "reads_ahead", True)),
            self._places: self._places_drawn() if owner else "",
            self._backup: gr.update(visible=True if owner else "hidden"),
            self._forget: button("hc_forget", _("Forget everything…"), text=held, css="hc-danger") if there else "",
            self._told: "",
        }  # fmt: skip
        for part in self._inside:
            update |= part.show(session)
        return update

    def _places_drawn(self) -> str:
        """Draw the files and folders that hierchat keeps, each with its name for the user."""
        data = self._service.data
        places = [
            (_("Chats and what was learned"), data.path),
            (_("Documents"), corpora_dir()),
            (_("Models (can be downloaded again)"), cache_dir()),
            (_("Backups (one a day, the last seven are kept)"), data.backups),
        ]
        sizes = [(name, path, size_of(path)) for name, path in places]  # 10,000 files take 0.1 s
        return _drawn.places(
            (name, path, gigabytes(size) if size else _("nothing yet")) for name, path, size in sizes
        )


def _choice(choices: Sequence[tuple[str, str]], label: str, elem_id: str) -> Any:
    """Make a radio component for one of several choices; its label is for screen readers."""
    return gr.Radio(
        [(_(said), name) for said, name in choices], label=label, show_label=False, container=False, elem_id=elem_id
    )  # fmt: skip


_drawn = Macros(
    "settings.html",
    NAMES=NAMES,
    NOW_SECONDS=_NOW_SECONDS,
    error_words=error_words,
    moment=moment,
    member_name=_shown_name,
)
