"""Make the components of the page where they stand, without behaviour."""

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from hierchat.chat.comparison import ARMS, USUAL
from hierchat.chat.frames import Arm
from hierchat.language import _
from hierchat.page import chat_settings, conversation, sidebar
from hierchat.page.panels.panel import Panel, still
from hierchat.page.templates import Macros, button, script

_drawn = Macros("page.html")
heading, recent = _drawn.heading, _drawn.recent
OFF = "hc-off"
"""Hides a column: Gradio 6.31 draws columns even where visible is "hidden"."""
MORE = ":more"
"""In the list of models: not one of them, but the page where others are."""


class Components:
    """Components that handlers read or write, made inside the Blocks context that is open."""

    def __init__(self, names: Sequence[str], login: bool, panels: Sequence[Panel]) -> None:
        """`names`: of models; with a `login`, there is a button to log out."""
        self.bus = gr.HTML("", elem_id="hc-bus", js_on_load=script())
        """Invisible: carries clicks on generated HTML in, and the stream's key and the chat of the panel out."""
        self.timer = gr.Timer(1.0, active=False)
        with gr.Sidebar(width=288, elem_id="hc-sidebar"):
            self._build_sidebar(panels, login)
        with gr.Column(elem_id="hc-main"):
            self._build_head(names)
            with gr.Column(elem_id="hc-empty"):
                self.project = gr.HTML("", elem_id="hc-project-page")
                """In a new chat of a project: what belongs to that."""
                self.offer = gr.HTML("", elem_id="hc-offer")
                """Cards on the empty page, where the model is tiny and a better one would run."""
                gr.HTML(_drawn.empty(login), elem_id="hc-begin")
                self.recent = gr.HTML("", elem_id="hc-recent")
            with gr.Column(elem_id="hc-chat", elem_classes=[OFF]):
                self.thread, self.growing = still("hc-thread"), still("hc-growing")
            self._build_comparison()
            for panel in panels:
                shown = {"elem_id": f"hc-panel-{panel.name}", "elem_classes": ["hc-panel", OFF]}
                with gr.Column(**shown):
                    panel.build()
            end = button("hc_end", _("To the end"), css="hc-icon", title=_("To the end"), hidden="")
            gr.HTML(end, elem_id="hc-end")
            self.live = gr.HTML("", elem_id="hc-live")
            self._build_composer()
        self.settings = chat_settings.ChatSettingsComponents()
        self.carried = [self.compare, self.bus, *self.settings.fields]
        values = [None if part is self.bus else part.value for part in self.carried]
        self.controls = gr.Textbox(json.dumps(values), visible=False)
        """The values of `carried` in JSON, which the browser keeps up to date."""
        self.told = [
            self.model, self.box, self.bus, self.timer, *self.settings.fields, self.settings.about,
            self.settings.reading,
            *(part for panel in panels for part in panel.outputs if not isinstance(part, gr.HTML)),
        ]  # fmt: skip
        """Those that Gradio changes: of all others, the page's stream sends the HTML."""

    def _build_sidebar(self, panels: Sequence[Panel], login: bool) -> None:
        with gr.Row(elem_id="hc-brand"):
            gr.HTML('<div class="hc-brand">hierchat</div>')
            self.new = gr.Button(_("New"), elem_id="hc-new", size="sm", min_width=0, scale=0)
        self.query = gr.Textbox(
            label=_("Search chats"), show_label=False, container=False, placeholder=_("Search"), elem_id="hc-search",
            lines=1, max_lines=1,
        )  # fmt: skip
        self.list = gr.HTML("", elem_id="hc-list")
        self.undo = gr.HTML("", elem_id="hc-undo")
        self.links = gr.HTML(sidebar.links(panels), elem_id="hc-links")
        # Whose page it is. Without a login there is nothing to tell, and no way out.
        self.account = gr.HTML(sidebar.account("") if login else "", elem_id="hc-log-out", visible=login)

    def _build_head(self, names: Sequence[str]) -> None:
        with gr.Row(elem_id="hc-head"):
            self.title = gr.HTML(heading(_("New chat")), elem_id="hc-title")
            self.model = gr.Dropdown(
                model_choices(names), value=None, label=_("Model"), show_label=False,
                container=False, elem_id="hc-model", min_width=0, filterable=False,
            )  # fmt: skip
            gr.HTML(chat_settings.opener(), elem_id="hc-chat-settings")
            self.compare = gr.Checkbox(
                False, label=_("Compare"), container=False, elem_id="hc-compare", min_width=0
            )
        with gr.Row(elem_id="hc-setup"):
            self.setup = gr.HTML(conversation.pair_line(USUAL), elem_id="hc-against")
            """The line that says what Compare runs,"""
            self.pair = gr.HTML(conversation.pair_form(names), elem_id="hc-pair")
            """and the form behind it."""
        self.host = gr.HTML("", elem_id="hc-host")
        self.incognito = gr.HTML("", elem_id="hc-incognito")

    def _build_comparison(self) -> None:
        with gr.Column(elem_id="hc-versus", elem_classes=[OFF]):
            self.asked = gr.HTML("", elem_id="hc-asked")
            with gr.Row(elem_id="hc-verdict-row"):
                self.verdict = gr.HTML("", elem_id="hc-verdict")
                self.back = gr.Button(
                    _("Back to the chat"), elem_id="hc-back", size="sm", min_width=0, scale=0
                )
            with gr.Row(elem_id="hc-columns"):
                self.columns: dict[Arm, tuple[Any, Any]] = {}
                for arm in ARMS:
                    with gr.Column(elem_classes="hc-column", elem_id=f"hc-{arm}", min_width=280):
                        text = gr.HTML(
                            "", elem_id=f"hc-{arm}-text", elem_classes="hc-text", apply_default_css=False,
                            js_on_load=None,
                        )  # fmt: skip
                        figures = gr.HTML("", elem_id=f"hc-{arm}-figures", elem_classes="hc-arm-figures")
                        self.columns[arm] = text, figures

    def _build_composer(self) -> None:
        self.tray = gr.HTML("", elem_id="hc-tray")
        with gr.Row(elem_id="hc-composer"):
            title, name = _("Attach text, code or PDF"), _("Attach files")
            gr.HTML(
                button("hc_attach", "+", css="hc-attach", title=title, aria_label=name), elem_id="hc-attach"
            )
            self.box = gr.Textbox(
                label=_("Message"), show_label=False, container=False, placeholder=_("Message…"), elem_id="hc-box",
                lines=1, max_lines=8, scale=1, html_attributes=gr.InputHTMLAttributes(autocapitalize="sentences"),
            )  # fmt: skip
            self.send = gr.Button(_("Send"), elem_id="hc-send", variant="primary", min_width=0, scale=0)
            self.stop = gr.Button(_("Stop"), elem_id="hc-stop", min_width=0, scale=0)
        with gr.Row(elem_id="hc-under"):
            self.context = gr.HTML("", elem_id="hc-context")
            # Where no key sends: on a touch screen, Stop stands in the place of Send.
            queue = button("hc_queue", _("Send next"), title=_("When this reply has ended"))
            gr.HTML(queue, elem_id="hc-queue")


def model_choices(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the entries of the list of models: those on this machine, and "More models…"."""
    return [*((name, name) for name in names), (_("More models…"), MORE)]
