"""The list of conversations as HTML, grouped by day. Pure functions."""

from __future__ import annotations

import html
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from hierchat.ui.actions import button

if TYPE_CHECKING:
    from hierchat.store.records import Conversation, Totals

UNTITLED = "New chat"


def day_of(updated_at: float, today: date) -> str:
    """The heading under which a conversation stands, by the local calendar of this machine."""
    day = datetime.fromtimestamp(updated_at).date()
    if day >= today:
        return "Today"
    return "Yesterday" if day == today - timedelta(days=1) else "Earlier"


def conversation_list(
    conversations: Iterable[Conversation],
    current: int | None,
    today: date,
    query: str = "",
    more: bool = False,
) -> str:
    """The conversations, latest first, the open one marked; below them a way to `more`."""
    groups = groupby(conversations, key=lambda c: day_of(c.updated_at, today))
    parts = [
        f"<h2>{heading}</h2><ul>{''.join(_entry(c, c.id == current) for c in group)}</ul>"
        for heading, group in groups
    ]
    if not parts:
        empty = "Nothing found." if query.strip() else "Your chats will appear here."
        parts = [f'<p class="hc-quiet">{empty}</p>']
    if more:
        parts.append(button("hc_more", "Show more", css="hc-more"))
    return f'<nav class="hc-list" aria-label="Conversations">{"".join(parts)}</nav>'


def _entry(conversation: Conversation, current: bool) -> str:
    title = conversation.title or UNTITLED
    snippet = (
        f'<small class="hc-snippet">{html.escape(conversation.snippet)}</small>'
        if conversation.snippet
        else ""
    )
    marks = {"aria_current": "page"} if current else {}
    return (
        f'<li class="{"hc-current" if current else ""}">'
        + button("hc_open", title, id=conversation.id, css="hc-title", title=title, dir="auto",
                 tabindex="-1", aria_keyshortcuts="F2 Delete", **marks)
        + '<span class="hc-tools">'
        + button("hc_rename", "Rename", id=conversation.id, css="hc-icon hc-pen",
                 aria_label=f"Rename {title}", title="Rename", tabindex="-1")
        + button("hc_delete", "Delete", id=conversation.id, css="hc-icon hc-bin",
                 aria_label=f"Delete {title}", title="Delete", tabindex="-1")
        + f"</span>{snippet}</li>"
    )  # fmt: skip


def footer(totals: Totals) -> str:
    """How much has been written for this user."""
    if not totals.replies:
        return ""
    replies = "1 reply" if totals.replies == 1 else f"{totals.replies:,} replies"
    tokens = "1 token" if totals.tokens == 1 else f"{totals.tokens:,} tokens"
    return f'<p class="hc-quiet">{replies}, {tokens} written on this machine</p>'
