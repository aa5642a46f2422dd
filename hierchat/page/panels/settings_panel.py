"""Settings: how the page looks, what may draft, when replies end, where everything lies, and how to be rid of it."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.access.login_sessions import LoginSession, LoginSessions
from hierchat.config import cache_dir, data_dir
from hierchat.language import _, later, plural
from hierchat.models.cache import gigabytes, size_of
from hierchat.page import account, guard, status
from hierchat.page.account import shown_name
from hierchat.page.buttons import button
from hierchat.page.guard import require_owner
from hierchat.page.panels import documents_panel, transfer_panel
from hierchat.page.panels.idle_panel import IdlePart
from hierchat.page.panels.panel import QUIET, SessionOf
from hierchat.page.sidebar import moment
from hierchat.store import Access, DraftsFrom, IdleSettings, Key
from hierchat.texts.corpora import corpora_dir

if TYPE_CHECKING:
    from hierchat.access.login_sessions import LoginSessions
    from hierchat.chat.service import ChatService
    from hierchat.chat.user_data import UserData


# Who is connected: in the owner's settings, where there is a login.


_NOW_SECONDS = 60.0
"""An open page asks for news once a second, or, in the background, once a minute."""


class ConnectedUsers:
    """The part of the settings."""

    def __init__(self, service: ChatService, log_ins: LoginSessions | None) -> None:
        self._service = service
        self._log_ins = log_ins

    def build(self) -> None:
        """Make its component."""
        self._list = gr.HTML("", elem_id="hc-connected")

    def wire(self, bus: Any, session_of: SessionOf, live: Any) -> None:
        """Join its buttons, which stand in generated HTML."""

        def end(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            user = session_of(request)[1]
            require_owner(self._service, user)
            ended = self._log_ins and self._log_ins.end_of(str(event._data["text"]))
            told = (
                _("The session of {name} has ended.").format(name=html.escape(shown_name(ended)))
                if ended
                else _("It had ended already.")
            )
            return self.show(user) | {live: status.closable(status.notice(told))}

        bus.hc_end_session(end, None, [self._list, live], **QUIET)

    @property
    def outputs(self) -> list[Any]:
        """The components that `show` may change."""
        return [self._list]

    def show(self, user_id: int) -> dict[Any, Any]:
        """Everybody who is logged in, for the owner; nothing for others, and without a login."""
        if self._log_ins is None or not self._service.users.is_owner(user_id):
            return {self._list: ""}
        return {self._list: drawn(self._log_ins.connected(), time.time())}


def drawn(sessions: Sequence[LoginSession], now: float) -> str:
    """The list as HTML; `now`: Unix time."""
    rows = "".join(_row(session, now) for session in sessions)
    return f'<h2>{_("Who is connected")}</h2><ul class="hc-rows hc-sessions">{rows}</ul>'


def _row(session: LoginSession, now: float) -> str:
    name = shown_name(session)
    owner = _(" (owner)") if session.owner else ""
    since = moment(session.since)
    about = f"{_('since {since}').format(since=since)} · {_seen(now - session.seen)} · {_(session.address)}"
    # Ending a guest's session deletes their chats: the page asks first.
    act = "hc_end_session" if session.member.account else "hc_end_guest"
    end = button(
        act,
        _("End session"),
        text=session.id,
        css="hc-bordered",
        aria_label=_("End session: {name}, {about}").format(name=name, about=about),
    )
    return (
        f'<li><div><b dir="auto">{html.escape(name)}</b>{owner}<p class="hc-quiet">{html.escape(about)}</p></div>'
        f"{end}</li>"
    )


def _seen(seconds: float) -> str:
    if seconds < _NOW_SECONDS:
        return _("here now")
    minutes = round(seconds / 60)
    if minutes < 60:
        return _("last seen {minutes} min ago").format(minutes=minutes)
    hours = round(minutes / 60)
    return (
        _("last seen {hours} h ago").format(hours=hours)
        if hours < 48
        else _("last seen {days} days ago").format(days=round(hours / 24))
    )


# A part of Settings: whether other programs may use the model, and with which keys.


_ABOUT = later(
    "Editors, scripts and chat apps can use the model (by the protocol of OpenAI). They see none of your chats."
)
_CHOICES: tuple[tuple[str, Access], ...] = (
    (later("None of them"), "off"),
    (later("Those that have a key"), "keys"),
    (later("Those that have a key, and all programs on this machine"), "open"),
)


class Programs:
    """The switch, and the keys that there are."""

    def __init__(self, service: ChatService) -> None:
        self._service = service

    def build(self) -> None:
        """Make its components."""
        self._about = gr.HTML(f'<h2>{_("Other programs")}</h2><p class="hc-quiet">{_(_ABOUT)}</p>')
        self._access = gr.Radio(
            [(_(said), name) for said, name in _CHOICES], label=_("Programs that may use the model"),
            show_label=False, container=False,
            elem_id="hc-programs",
        )  # fmt: skip
        self._keys = gr.HTML("", elem_id="hc-program-keys")

    def wire(self, session_of: SessionOf, live: Any) -> None:
        """Join the switch to its handler."""

        def choose(chosen: Access, request: gr.Request) -> dict[Any, Any]:
            require_owner(self._service, session_of(request)[1])
            self._service.keys.set_access(chosen)
            return self.show(owner=True)

        self._access.input(choose, self._access, [*self.outputs, live], **QUIET)

    @property
    def outputs(self) -> list[Any]:
        """Return the components that `show` changes."""
        return [self._about, self._access, self._keys]

    def show(self, *, owner: bool) -> dict[Any, Any]:
        """Draw what is chosen, and the keys: for the owner alone."""
        if not owner:
            hidden = gr.update(visible="hidden")
            return {self._about: hidden, self._access: hidden, self._keys: ""}
        access = self._service.keys.access()
        return {
            self._about: gr.update(visible=True),
            self._access: gr.update(value=access, visible=True),
            self._keys: "" if access == "off" else _keys(self._service.keys.all()),
        }


def _keys(keys: list[Key]) -> str:
    rows = "".join(f"<li><b>{html.escape(key.name)}</b> <span>{_about(key)}</span></li>" for key in keys)
    there = f'<h3>{_("Keys")}</h3><ul class="hc-rows">{rows}</ul>' if rows else ""
    away = (
        _(", away: {command}").format(command="<code>python -m hierchat keys remove NAME</code>")
        if rows
        else ""
    )
    address = _("The address to give them is that of this page with {end} at its end.").format(
        end="<code>/v1</code>"
    )
    new = _("A new key: {command}").format(command="<code>python -m hierchat keys add NAME</code>")
    return f'<p class="hc-quiet">{address} {new}{away}.</p>{there}'


def _about(key: Key) -> str:
    kept = (
        _("its own requests are kept, to make its replies faster")
        if key.user_id
        else _("nothing it asks is kept")
    )
    return plural("{n:,} token today; {kept}", "{n:,} tokens today; {kept}", key.today, kept=kept)


_FASTER = later(
    "The words of a reply are the same whatever you choose: earlier texts are only used to guess ahead, and the model "
    "checks each guess."
)
_THEMES = ((later("As the system"), "system"), (later("Light"), "light"), (later("Dark"), "dark"))
_DRAFTS: tuple[tuple[str, DraftsFrom], ...] = (
    (later("All of my chats and texts (fastest)"), "all"),
    (later("Only the chat itself"), "chat"),
    (later("Nothing (slowest)"), "none"),
)


class SettingsPanel:
    """The panel. What concerns the machine is shown to its owner alone."""

    name = "settings"
    title = later("Settings")

    def __init__(self, service: ChatService, log_ins: LoginSessions | None) -> None:
        self._service = service
        self.connected = ConnectedUsers(service, log_ins)
        self._programs = Programs(service)
        self.learning = IdlePart(service)

    def build(self) -> None:
        """Make its components."""
        # The theme belongs to this browser, not to the account: the page's script keeps it (theme.js).
        choices = "".join(
            f'<label><input type="radio" name="hc-theme" value="{value}">{_(name)}</label>'
            for name, value in _THEMES
        )
        if languages := guard.choices():
            options = "".join(
                f'<option value="{code}" lang="{code}">{html.escape(name)}</option>'
                for name, code in languages
            )
            first = f'<option value="">{_("As the browser")}</option>'
            label = f"<label>{_('Language')} <select>{first}{options}</select></label>"
            gr.HTML(f'<div id="hc-language">{label}</div>')
        gr.HTML(
            f'<fieldset class="hc-choice" id="hc-theme"><legend>{_("Theme")}</legend>{choices}</fieldset>'
        )
        gr.HTML(f'<h2>{_("What may make replies faster")}</h2><p class="hc-quiet">{_(_FASTER)}</p>')
        self._drafts = gr.Radio(
            [(_(said), name) for said, name in _DRAFTS], label=_("Earlier texts that may be used"),
            show_label=False, container=False,
            elem_id="hc-drafts-from",
        )  # fmt: skip
        self.texts = documents_panel.UserDocumentsHandlers(self._service, documents_panel.build())
        self._proof = gr.HTML("", elem_id="hc-model-proof")
        self.learning.build()
        gr.HTML(f"<h2>{_('Chats')}</h2>")
        self._keep = gr.Checkbox(
            True, label=_("Replies go on when the page is closed"), container=False, elem_id="hc-keep"
        )
        self._titles = gr.Checkbox(
            True, label=_("The model names new chats, while nobody waits for it"), container=False
        )
        self.transfer = transfer_panel.build()
        self.password = account.build_password()
        self.connected.build()
        self._programs.build()
        gr.HTML(f"<h2>{_('Your data')}</h2>")
        self._places = gr.HTML("", elem_id="hc-places")
        with gr.Row(elem_classes="hc-buttons"):
            self._backup = gr.Button(_("Back up now"), elem_id="hc-backup", size="sm", scale=0, min_width=0)
            self._unlearn = gr.Button(
                _("Forget what was learned about drafting"),
                elem_id="hc-unlearn",
                size="sm",
                scale=0,
                min_width=0,
            )
            self._reset = gr.Button(
                _("Settings as they were"), elem_id="hc-reset", size="sm", scale=0, min_width=0
            )
        self._forget = gr.HTML("", elem_id="hc-forget")
        self._told = gr.HTML("", elem_id="hc-settings-told")

    def wire(self, session_of: SessionOf, live: Any) -> None:
        """Join its controls to their handlers."""

        def choose(chosen: DraftsFrom, request: gr.Request) -> dict[Any, Any]:
            self._service.users.set_drafts_from(session_of(request)[1], chosen)
            return {self._told: ""}

        def title(allowed: bool, request: gr.Request) -> dict[Any, Any]:
            self._service.users.set_model_titles(session_of(request)[1], bool(allowed))
            return {self._told: ""}

        def keep(on: bool, request: gr.Request) -> dict[Any, Any]:
            self._service.users.set_keeps_writing(session_of(request)[1], bool(on))
            return {self._told: ""}

        def backup(request: gr.Request) -> dict[Any, Any]:
            require_owner(self._service, session_of(request)[1])
            return {self._told: status.notice(_back_up(self._service.data))}

        def unlearn(request: gr.Request) -> dict[Any, Any]:
            self._service.data.forget_learned(session_of(request)[1])
            return {self._told: status.notice(_("Forgotten. It is learned again from the next replies on."))}

        def reset(request: gr.Request) -> dict[Any, Any]:
            user = session_of(request)[1]
            self._service.users.set_drafts_from(user, "all")
            self._service.users.set_model_titles(user, True)
            self._service.users.set_keeps_writing(user, True)
            self._service.idle.choose(user, IdleSettings())
            if self._service.users.is_owner(user):
                self._service.keys.set_access("off")
            return self.show(user) | {self._told: status.notice(_("All settings are as they were at first."))}

        self._programs.wire(session_of, live)
        self._drafts.input(choose, self._drafts, [self._told, live], **QUIET)
        self._titles.input(title, self._titles, [self._told, live], **QUIET)
        self._keep.input(keep, self._keep, [self._told, live], **QUIET)
        self._backup.click(backup, None, [self._told, live], **QUIET)
        self._unlearn.click(unlearn, None, [self._told, live], **QUIET)
        self._reset.click(
            reset, None, [*self.outputs, live], js="() => { hcTheme('system'); hcLanguage(''); }", **QUIET
        )

    @property
    def outputs(self) -> list[Any]:
        """The components that `show` may change."""
        return [
            *self.texts.outputs, self._drafts, self._proof, self._keep, self._titles, self._places, self._backup,
            self._forget, self._told, *self.connected.outputs, *self._programs.outputs,
            *self.learning.outputs,
        ]  # fmt: skip

    def show(self, user_id: int) -> dict[Any, Any]:
        """Draw what is chosen, and what is there. Where it lies, and what all users share, concerns the owner alone."""
        owner = self._service.users.is_owner(user_id)
        chats, messages = self._service.users.counts(user_id)
        held = plural(
            "{n:,} chat with {messages:,} messages",
            "{n:,} chats with {messages:,} messages",
            chats,
            messages=messages,
        )
        if written := self._service.data.generated(user_id).tokens:
            held = _("{held} and {tokens:,} tokens that the model wrote for itself").format(
                held=held, tokens=written
            )
        there = chats or written
        forget = button("hc_forget", _("Forget everything…"), text=held, css="hc-danger") if there else ""
        return (
            {
                self._drafts: self._service.users.drafts_from(user_id),
                self._keep: self._service.users.keeps_writing(user_id),
                self._proof: status.model_proof(self._service.model_status),
                self._titles: self._service.users.model_titles(user_id),
                self._places: _places(self._service.data.path) if owner else "",
                self._backup: gr.update(visible=True if owner else "hidden"),
                self._forget: forget,
                self._told: "",
            }
            | self.texts.drawn(user_id)
            | self.connected.show(user_id)
            | self._programs.show(owner=owner)
            | self.learning.show(user_id)
        )


def _back_up(data: UserData) -> str:
    """A copy of the database in a folder beside it; what was done, as a sentence."""
    path = data_dir() / "backups" / time.strftime("hierchat-%Y-%m-%d-%H%M%S.db")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        data.backup(path)
    except OSError as error:
        return _("{folder} cannot be made: {why}. Make room or make {data} writable.").format(
            folder=path.parent, why=error.strerror, data=data_dir()
        )
    return _("Copied to {path}, {size}, and checked.").format(path=path, size=gigabytes(path.stat().st_size))


def _places(database: Path) -> str:
    """Draw where everything lies, and how much of it there is."""
    rows = [
        (_("Chats and what was learned"), database, _size(database)),
        (_("Texts of your own"), corpora_dir(), _size(corpora_dir())),
        (_("Models (can be downloaded again)"), cache_dir(), _size(cache_dir())),
    ]
    cells = "".join(
        f'<dt>{name}</dt><dd><span class="hc-path">{html.escape(str(path))}</span> {size}</dd>'
        for name, path, size in rows
    )
    return f'<dl class="hc-facts">{cells}</dl>'


def _size(path: Path) -> str:
    return gigabytes(size_of(path)) if path.exists() else _("nothing yet")
