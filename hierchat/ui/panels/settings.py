"""Settings: how the page looks, what may draft, when replies end, where everything lies, and how to be rid of it."""

from __future__ import annotations

import html
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.config import cache_dir, data_dir
from hierchat.corpus.stored import corpora_dir
from hierchat.language import _, later, plural
from hierchat.models.cache import gigabytes, size_of
from hierchat.store import DraftsFrom, Learning, Store
from hierchat.ui import account, own_texts, speaking, status, transfer_panel
from hierchat.ui.actions import button
from hierchat.ui.connected import Connected
from hierchat.ui.learning import LearningPart
from hierchat.ui.owner import require_owner
from hierchat.ui.panels.panel import QUIET, Who
from hierchat.ui.panels.programs import Programs

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.ui.doors.sessions import LogIns

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

    def __init__(self, service: ChatService, log_ins: LogIns | None) -> None:
        self._service = service
        self._store = service.store
        self.connected = Connected(self._store, log_ins)
        self._programs = Programs(service.store)
        self.learning = LearningPart(service)

    def build(self) -> None:
        """Its components."""
        # The theme belongs to this browser, not to the account: the page's script keeps it (theme.js).
        choices = "".join(
            f'<label><input type="radio" name="hc-theme" value="{value}">{_(name)}</label>'
            for name, value in _THEMES
        )
        if languages := speaking.choices():
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
        self.texts = own_texts.OwnTextsHandlers(self._service, own_texts.build())
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

    def wire(self, who: Who, live: Any) -> None:
        """Join its controls to their handlers."""

        def choose(chosen: DraftsFrom, request: gr.Request) -> dict[Any, Any]:
            self._store.set_drafts_from(who(request)[1], chosen)
            return {self._told: ""}

        def title(allowed: bool, request: gr.Request) -> dict[Any, Any]:
            self._store.allow_model_titles(who(request)[1], bool(allowed))
            return {self._told: ""}

        def keep(on: bool, request: gr.Request) -> dict[Any, Any]:
            self._store.keep_writing(who(request)[1], bool(on))
            return {self._told: ""}

        def backup(request: gr.Request) -> dict[Any, Any]:
            require_owner(self._store, who(request)[1])
            return {self._told: status.notice(_back_up(self._store))}

        def unlearn(request: gr.Request) -> dict[Any, Any]:
            self._store.forget_learned(who(request)[1])
            return {self._told: status.notice(_("Forgotten. It is learned again from the next replies on."))}

        def reset(request: gr.Request) -> dict[Any, Any]:
            user = who(request)[1]
            self._store.set_drafts_from(user, "all")
            self._store.allow_model_titles(user, True)
            self._store.keep_writing(user, True)
            self._service.learning.choose(user, Learning())
            if self._store.is_owner(user):
                self._store.set_access("off")
            return self.show(user) | {self._told: status.notice(_("All settings are as they were at first."))}

        self._programs.wire(who, live)
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
        """What is chosen, and what is there. Where it lies, and what all users share, concerns the owner alone."""
        owner = self._store.is_owner(user_id)
        chats, messages = self._store.held_of(user_id)
        held = plural(
            "{n:,} chat with {messages:,} messages",
            "{n:,} chats with {messages:,} messages",
            chats,
            messages=messages,
        )
        if written := self._store.self_size(user_id).tokens:
            held = _("{held} and {tokens:,} tokens that the model wrote for itself").format(
                held=held, tokens=written
            )
        there = chats or written
        forget = button("hc_forget", _("Forget everything…"), text=held, css="hc-danger") if there else ""
        return (
            {
                self._drafts: self._store.drafts_from(user_id),
                self._keep: self._store.keeps_writing(user_id),
                self._proof: status.model_proof(self._service.host.status),
                self._titles: self._store.model_titles(user_id),
                self._places: _places(self._store) if owner else "",
                self._backup: gr.update(visible=True if owner else "hidden"),
                self._forget: forget,
                self._told: "",
            }
            | self.texts.drawn(user_id)
            | self.connected.show(user_id)
            | self._programs.show(owner=owner)
            | self.learning.show(user_id)
        )


def _back_up(store: Store) -> str:
    """A copy of the database in a folder beside it; what was done, as a sentence."""
    path = data_dir() / "backups" / time.strftime("hierchat-%Y-%m-%d-%H%M%S.db")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        store.backup(path)
    except OSError as error:
        return _("{folder} cannot be made: {why}. Make room or make {data} writable.").format(
            folder=path.parent, why=error.strerror, data=data_dir()
        )
    return _("Copied to {path}, {size}, and checked.").format(path=path, size=gigabytes(path.stat().st_size))


def _places(store: Store) -> str:
    """Where everything lies, and how much of it there is."""
    rows = [
        (_("Chats and what was learned"), store.path, _size(store.path)),
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
