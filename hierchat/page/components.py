"""The components of the page and where they stand. No behaviour."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from hierchat.chat.comparison import ARMS, USUAL
from hierchat.chat.frames import Arm
from hierchat.language import _, later
from hierchat.page import account, chat_settings, comparison_view
from hierchat.page.buttons import button, script
from hierchat.page.panels.panel import Panel, links

EXAMPLES = (
    later("Write a Python function that reverses a string, and a test for it."),
    later("Explain in simple words why the sky is blue."),
    later("Plan a weekend in Oslo for two people who like museums."),
)
OFF = "hc-off"
"""Hides a column: Gradio 6.31 draws columns even where visible is "hidden"."""
MORE = ":more"
"""In the list of models: not one of them, but the page where others are."""


@dataclass(frozen=True, slots=True)
class Components:
    """The components that handlers read or write."""

    bus: Any
    """Invisible: carries the clicks on generated HTML in, and the open conversation's id out."""
    timer: Any
    pulse: Any
    """Asks for news of other pages."""
    cue: Any
    """Invisible: tells the script that there is something to follow, or to draw again."""
    new: Any
    query: Any
    list: Any
    undo: Any
    links: Any
    footer: Any
    settings: chat_settings.ChatSettingsComponents
    title: Any
    model: Any
    compare: Any
    host: Any
    empty: Any
    incognito: Any
    tiny: Any
    """At the end of the empty page, where the model is tiny and a better one would run."""
    chat: Any
    thread: Any
    growing: Any
    versus: Any
    verdict: Any
    asked: Any
    setup: Any
    """The line that says what Compare runs,"""
    pair: Any
    """and the form behind it."""
    result: Any
    back: Any
    columns: dict[Arm, tuple[Any, Any]]
    panels: dict[str, Any]
    """Their columns, by name."""
    live: Any
    box: Any
    send: Any
    stop: Any
    context: Any
    tray: Any
    count: Any
    account: Any
    """Whose page it is; None without a login."""


def empty_page(place: str) -> str:
    """Draw what stands where a conversation will be. `place`: where the data lies; empty where it is not the
    reader's."""
    cards = "".join(button("hc_example", text, text=text, css="hc-card") for text in map(_, EXAMPLES))
    said = _("Everything stays on the machine that hierchat runs on. Nobody else sees your chats.")
    if place:
        said = (
            f'{_("Everything stays on this machine, in")} <span class="hc-path">{html.escape(place)}</span>. '
            f"{button('hc_panel', _('Notes, code and exported chats of yours'), text='settings', css='hc-link')} "
            f"{_('can make it faster.')}"
        )
    return (
        f'<div class="hc-empty"><h2>{_("What shall we talk about?")}</h2>'
        f'<div class="hc-cards">{cards}</div><p class="hc-quiet">{said}</p></div>'
    )


def model_choices(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the entries of the list of models: those that are here, and the way to all others."""
    return [*((name, name) for name in names), (_("More models…"), MORE)]


def heading(title: str) -> str:
    """The title of the open conversation."""
    return f'<h1 class="hc-heading" dir="auto" title="{html.escape(title)}">{html.escape(title)}</h1>'


def build(names: Sequence[str], place: str, login: bool, panels: Sequence[Panel]) -> Components:
    """Make all components, inside the Blocks context that is open; with a `login`, there is a way out of it."""
    bus = gr.HTML("", elem_id="hc-bus", js_on_load=script())
    timer = gr.Timer(1.0, active=False)
    pulse, cue = gr.Timer(1.0, active=False), gr.HTML("", elem_id="hc-cue")
    with gr.Sidebar(width=288, elem_id="hc-sidebar"):
        with gr.Row(elem_id="hc-brand"):
            gr.HTML('<div class="hc-brand">hierchat</div>')
            new = gr.Button(_("New"), elem_id="hc-new", size="sm", min_width=0, scale=0)
        query = gr.Textbox(
            label=_("Search chats"), show_label=False, container=False, placeholder=_("Search"), elem_id="hc-search",
            lines=1, max_lines=1,
        )  # fmt: skip
        chats = gr.HTML("", elem_id="hc-list")
        undo = gr.HTML("", elem_id="hc-undo")
        ways = gr.HTML(links(panels), elem_id="hc-links")
        footer = gr.HTML("", elem_id="hc-footer")
        gr.HTML(button("hc_help", _("Keyboard shortcuts"), aria_keyshortcuts="?"), elem_id="hc-help")
        whose = account.build() if login else None
    with gr.Column(elem_id="hc-main"):
        with gr.Row(elem_id="hc-head"):
            title = gr.HTML(heading(_("New chat")), elem_id="hc-title")
            model = gr.Dropdown(
                model_choices(names), value=None, label=_("Model"), show_label=False,
                container=False, elem_id="hc-model", min_width=0, filterable=False,
            )  # fmt: skip
            chat_settings.opener()
            compare = gr.Checkbox(
                False, label=_("Compare"), container=False, elem_id="hc-compare", min_width=0
            )
        with gr.Row(elem_id="hc-setup"):
            against = gr.HTML(comparison_view.line(USUAL), elem_id="hc-against")
            pair = gr.HTML(comparison_view.form(names), elem_id="hc-pair")
        host = gr.HTML("", elem_id="hc-host")
        secret = gr.HTML("", elem_id="hc-incognito")
        with gr.Column(elem_id="hc-empty") as empty:
            gr.HTML(empty_page("" if login else place))
            tiny = gr.HTML("", elem_id="hc-tiny")
        with gr.Column(elem_id="hc-chat", elem_classes=[OFF]) as chat:
            thread = _still("hc-thread")
            growing = _still("hc-growing")
        with gr.Column(elem_id="hc-versus", elem_classes=[OFF]) as versus:
            asked = gr.HTML("", elem_id="hc-asked")
            with gr.Row(elem_id="hc-verdict-row"):
                verdict = gr.HTML("", elem_id="hc-verdict")
                back = gr.Button(_("Back to the chat"), elem_id="hc-back", size="sm", min_width=0, scale=0)
            with gr.Row(elem_id="hc-columns"):
                columns = {arm: _column(arm) for arm in ARMS}
            result = gr.HTML("", elem_id="hc-result", apply_default_css=False, js_on_load=None)
        places = {panel.name: _place(panel) for panel in panels}
        gr.HTML(
            button("hc_end", _("To the end"), css="hc-icon", title=_("To the end"), hidden=""),
            elem_id="hc-end",
        )
        live = gr.HTML("", elem_id="hc-live")
        tray = gr.HTML("", elem_id="hc-tray")
        with gr.Row(elem_id="hc-composer"):
            gr.HTML(
                button(
                    "hc_attach",
                    "+",
                    css="hc-attach",
                    title=_("Attach text, code or PDF"),
                    aria_label=_("Attach files"),
                ),
                elem_id="hc-attach",
            )
            box = gr.Textbox(
                label=_("Message"), show_label=False, container=False, placeholder=_("Message…"), elem_id="hc-box",
                lines=1, max_lines=8, scale=1, html_attributes=gr.InputHTMLAttributes(autocapitalize="sentences"),
            )  # fmt: skip
            send = gr.Button(_("Send"), elem_id="hc-send", variant="primary", min_width=0, scale=0)
            stop = gr.Button(_("Stop"), elem_id="hc-stop", min_width=0, scale=0, visible="hidden")
        with gr.Row(elem_id="hc-under"):
            context = gr.HTML("", elem_id="hc-context")
            count = gr.HTML("", elem_id="hc-count")
            # Where no key sends: on a touch screen, Stop stands in the place of Send.
            gr.HTML(
                button("hc_queue", _("Send next"), title=_("When this reply has ended")), elem_id="hc-queue"
            )
    panel = chat_settings.build()
    return Components(
        bus, timer, pulse, cue, new, query, chats, undo, ways, footer, panel, title, model, compare, host, empty,
        secret, tiny, chat, thread, growing, versus, verdict, asked, against, pair, result, back, columns, places, live,
        box, send, stop, context, tray, count, whose,
    )  # fmt: skip


def _still(elem_id: str) -> Any:
    """Generated HTML in our own style. Gradio changes only those nodes that differ from the value before."""
    return gr.HTML("", elem_id=elem_id, apply_default_css=False, js_on_load=None)


def _place(panel: Panel) -> Any:
    with gr.Column(elem_id=f"hc-panel-{panel.name}", elem_classes=["hc-panel", OFF]) as place:
        panel.build()
    return place


def _column(arm: Arm) -> tuple[Any, Any]:
    with gr.Column(elem_classes="hc-column", elem_id=f"hc-{arm}", min_width=280):
        text = gr.HTML("", elem_classes="hc-text", apply_default_css=False, js_on_load=None)
        figures = gr.HTML("", elem_classes="hc-arm-figures")
    return text, figures
