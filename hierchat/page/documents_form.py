"""Draws the documents of the open chat in its settings, and the form where files and folders are named or dropped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hierchat.language import _, later, plural
from hierchat.models.cache import gigabytes
from hierchat.page import status
from hierchat.page.buttons import button
from hierchat.page.event_data import MOST_FILES
from hierchat.texts.text_files import KNOWN

if TYPE_CHECKING:
    from hierchat.chat.chat_documents import DocumentReading
    from hierchat.store import Document

NAMED = 20
"""Files that are named at most."""
_ABOUT = later(
    "Text, code, PDF, Word, HTML and EPUB, of any length. Each question takes along what fits it best: up to "
    "{n:,} tokens."
)


def form(to: str, name: str, how: str, *, path: bool = True, more: str = "") -> str:
    """Draw the form; its script is own_texts.js. `to`: how the events begin that it leads to; `name`: of the button
    behind the `path`, where one may be named."""
    known = html.escape(" ".join(sorted(KNOWN)))
    field = (
        f'<input type="text" id="{to.replace("_", "-")}-path" aria-label="{_("Path of a file or folder")}" '
        'placeholder="~/notes" dir="ltr" autocomplete="off" spellcheck="false">'
        + button("hc_texts_path", name, css="hc-strong")
    )
    choose = button("hc_texts_choose", _("Choose texts…"), css="hc-bordered")
    return (
        f'<div class="hc-texts-drop" role="group" aria-label="{_("Add texts")}" data-to="{to}" data-known="{known}" '
        f'data-most="{MOST_FILES}"><div class="hc-add">{field if path else ""}{choose}</div>{more}'
        f'<p class="hc-quiet">{how}</p><p class="hc-quiet hc-texts-sending" role="status"></p></div>'
    )


def chat_form(*, owner: bool, in_project: bool) -> str:
    """Draw the form of a chat's documents; its `owner` may name paths of this machine."""
    shared = (
        f'<label><input type="checkbox"> {_("For all chats of the project")}</label>' if in_project else ""
    )
    return form("hc_documents", _("Add"), _("Drop files or a folder here."), path=owner, more=shared)


def section(documents: Sequence[Document], budget: int, now: DocumentReading | None, form: str) -> str:
    """Draw a chat's documents, how far others are read, and the form where more are named."""
    rows = "".join(map(_row, documents))
    return (
        f'<h3>{_("Documents")}</h3><p class="hc-quiet">{_(_ABOUT).format(n=budget)}</p>'
        + (f'<ul class="hc-rows hc-texts">{rows}</ul>' if rows else "")
        + form
        + (_progress(now) if now else "")
    )


def _row(document: Document) -> str:
    facts = [gigabytes(document.size), plural("{n:,} passage", "{n:,} passages", document.passages)]
    facts += [] if document.done else [_("not read to the end")]
    facts += [_("of the project")] if document.in_project else []
    said = f"<b>{html.escape(document.name)}</b> <span>{html.escape(' · '.join(facts))}</span>"
    label = _("Remove {name}").format(name=document.name)
    remove = button("hc_documents_remove", _("Remove"), id=document.id, text=document.name, css="hc-bordered",
                    aria_label=label)  # fmt: skip
    return f'<li>{said}<div class="hc-texts-acts">{remove}</div></li>'


def _progress(now: DocumentReading) -> str:
    if now.ended.is_set():
        unread = status.folded(_("What was not read as usual"), now.unread, len(now.unread), NAMED)
        return status.error(now.unread[0]) if len(now.unread) == 1 else unread
    said = _("Reading {name}: {done} of {total}").format(
        name=html.escape(now.name), done=gigabytes(now.done), total=gigabytes(now.total)
    )
    stop = button("hc_documents_stop", _("Stop"), css="hc-bordered")
    return f'<div class="hc-wait" role="status">{said}{status.progress_bar(now.done, now.total)}</div>{stop}'
