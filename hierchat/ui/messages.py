"""Stored messages as Chatbot messages. They are for the eye only: the store is the truth."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.components.chatbot import ComponentMessage, TextMessage
from gradio.components.chatbot import Message as Shown

from hierchat.chat.frames import Figures
from hierchat.ui import figures as figures_view
from hierchat.ui.actions import button
from hierchat.ui.markdown import shown
from hierchat.ui.sources import coloured
from hierchat.ui.status import notice

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.store.records import Message

# Taken once: inside a handler Gradio leaves components uninitialised.
_PROPS = gr.HTML("", render=False, js_on_load=None).get_config()
_BACK, _FORTH = (
    "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
)
_NO_SPANS = "Sources can be shown only while the model that wrote this reply is loaded."
_NOTES = {"stopped": "stopped", "interrupted": "interrupted", "writing": "still being written"}


def _html(value: str) -> ComponentMessage:
    return ComponentMessage(
        component="html", value=value, constructor_args={}, props={**_PROPS, "value": value}
    )


def user_message(text: str, actions: str = "") -> Shown:
    """What the user typed, as typed: no Markdown, white space kept. Without actions their place stays free."""
    body = f'<div class="hc-user">{html.escape(text)}</div><div class="hc-actions hc-mine">{actions}</div>'
    return Shown(role="user", content=[_html(body)])


def growing(text: str) -> Shown:
    """A reply while it is written."""
    return Shown(role="assistant", content=[TextMessage(text=shown(text) or "…")])


def _siblings(message: Message) -> str:
    if len(message.siblings) < 2:
        return ""
    place = message.siblings.index(message.id)

    def step(to: int, label: str, name: str) -> str:
        if 0 <= to < len(message.siblings):
            return button("hc_branch", label, id=message.siblings[to], aria_label=name)
        return button("hc_branch", label, disabled="", aria_label=name)

    count = f'<span class="hc-figure">{place + 1}/{len(message.siblings)}</span>'
    inside = step(place - 1, _BACK, "Previous version") + count + step(place + 1, _FORTH, "Next version")
    return f'<span class="hc-branches">{inside}</span>'


def _user(message: Message, last: bool) -> Shown:
    # A question without a reply (stopped in the queue, or the machine went down) can be asked again.
    again = button("hc_again", "Again", id=message.id) if last else ""
    edit = button("hc_edit", "Edit", id=message.id, text=message.text)
    copy = button("hc_copy", "Copy", text=message.text)
    return user_message(message.text, f"{_siblings(message)}{again}{edit}{copy}")


def _reply(message: Message, figures: Figures | None, spans: list[tuple[str, str]] | None) -> Shown:
    note = _NOTES.get(message.state, "")
    if note and not message.text:
        note += " before the first word"
    known = figures or Figures()
    buttons = [
        _siblings(message),
        button("hc_sources", "Sources", id=message.id, aria_pressed="false" if spans is None else "true"),
        button("hc_again", "Again", id=message.parent_id or 0),
        button("hc_copy", "Copy", text=message.text),
    ]
    facts = (
        f'<details class="hc-details"><summary>Details</summary>{figures_view.details(figures)}</details>'
        if figures
        else ""
    )
    footer = (
        f'<div class="hc-foot" data-message="{message.id}">{figures_view.figures_line(known, note)}'
        f'<div class="hc-actions">{"".join(buttons)}{facts}</div></div>'
    )
    content: list[Any] = [_html(footer)]
    if spans:
        content.insert(0, _html(coloured(spans)))
    elif message.text:
        if spans is not None:
            content.insert(0, _html(notice(_NO_SPANS)))
        content.insert(0, TextMessage(text=shown(message.text)))
    return Shown(role="assistant", content=content)


def history(
    service: ChatService, user_id: int, messages: Iterable[Message], marked: Collection[int] = ()
) -> list[Shown]:
    """A conversation's current path; replies in `marked` show their tokens by source."""
    path = [message for message in messages if message.role != "system"]
    result = []
    for place, message in enumerate(path):
        if message.role == "user":
            result.append(_user(message, last=place == len(path) - 1))
        else:
            spans = service.spans(user_id, message.id) if message.id in marked else None
            result.append(_reply(message, service.figures(user_id, message.id), spans))
    return result
