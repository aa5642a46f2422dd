"""The list of conversations as HTML: pinned ones, then by date. Pure functions."""

from __future__ import annotations

import html
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hierchat.language import _, later, plural
from hierchat.page.buttons import button
from hierchat.store import FOUND_BEGINS, FOUND_ENDS
from hierchat.store.connection import NUMBER, split_tags

if TYPE_CHECKING:
    from hierchat.chat.conversations import ConversationList, Deleted
    from hierchat.page.panels.panel import Panel
    from hierchat.store.records import Conversation, Totals


MONTHS = (
    later("January"), later("February"), later("March"), later("April"), later("May"), later("June"), later("July"),
    later("August"), later("September"), later("October"), later("November"), later("December"),
)  # fmt: skip
_SHORT = (
    later("Jan"), later("Feb"), later("Mar"), later("Apr"), later("May"), later("Jun"), later("Jul"), later("Aug"),
    later("Sep"), later("Oct"), later("Nov"), later("Dec"),
)  # fmt: skip


def day(when: date) -> str:
    """A day of some year."""
    return _("{day} {month}").format(day=when.day, month=_(_SHORT[when.month - 1]))


def month(when: date) -> str:
    """A month with its year."""
    return f"{_(_SHORT[when.month - 1])} {when.year}"


def moment(seconds: float) -> str:
    """A day of some year, and the time; from Unix time."""
    return f"{day(date.fromtimestamp(seconds))}, {time.strftime('%H:%M', time.localtime(seconds))}"


def dated(seconds: float) -> str:
    """Return a day with its year, and the time; from Unix time."""
    when = date.fromtimestamp(seconds)
    return f"{day(when)} {when.year}, {time.strftime('%H:%M', time.localtime(seconds))}"


Choices = Mapping[str, Sequence[object]]
"""What there is to choose for a project: names of models, and presets as id and name."""
GUEST = "guest"
"""What a guest is called on the page; their user's name is longer."""
UNTITLED = later("New chat")
_AGES = ((0, later("Today")), (1, later("Yesterday")), (7, later("Last 7 days")), (30, later("Last 30 days")))
_FOUND = re.compile(f"{FOUND_BEGINS}([^{FOUND_BEGINS}{FOUND_ENDS}]*){FOUND_ENDS}")
_LEFT_OVER = re.compile(f"[{FOUND_BEGINS}{FOUND_ENDS}]")


def day_of(updated_at: float, today: date) -> str:
    """The heading for a date, by the local calendar of this machine."""
    day = datetime.fromtimestamp(updated_at).date()
    for age, heading in _AGES:
        if (today - day).days <= age:
            return _(heading)
    month = _(MONTHS[day.month - 1])
    return month if day.year == today.year else f"{month} {day.year}"


def conversation_list(
    found: ConversationList, current: int | None, today: date, query: str = "", *, show_archived: bool = False
) -> str:
    """Draw chats in order, the open one marked, with ways to more and to archived ones, or `show_archived` only."""

    def heading(conversation: Conversation) -> str:
        if conversation.archived and not show_archived:
            return _("Archived")
        return _("Pinned") if conversation.pinned else day_of(conversation.updated_at, today)

    conversations = found.conversations
    named = Counter(_base(conversation) for conversation in conversations)
    parts = []
    if show_archived:
        back = _("Back to all chats")
        parts.append(button("hc_show_archived", _("All chats"), css="hc-archived hc-back", aria_label=back))
    parts += [
        f"<h2>{name}</h2><ul>"
        + "".join(
            _entry(c, c.id == current, c.id in found.writing, named[_base(c)] > 1, today) for c in group
        )
        + "</ul>"
        for name, group in groupby(conversations, key=heading)
    ]
    if not parts and (found.sought or not found.projects):
        empty = _("Nothing found.") if query.strip() else _("Your chats will appear here.")
        parts = [f'<p class="hc-quiet">{empty}</p>']
    if found.more:
        parts.append(button("hc_more", _("Show more"), css="hc-more"))
    if found.archived and not show_archived and not query.strip():
        label = _("Archived ({archived:,})").format(archived=found.archived)
        parts.append(button("hc_show_archived", label, css="hc-archived"))
    name = _("Archived conversations") if show_archived else _("Conversations")
    return f'<nav class="hc-list" aria-label="{name}">{"".join(parts)}</nav>'


def projects(found: ConversationList, unfolded: int | None, current: int | None, choices: Choices) -> str:
    """Draw the projects, one of them unfolded with its chats. Their dialogs read what there is to choose."""
    rows = ""
    for project in found.projects:
        inside = ""
        if unfolded == project.id:
            today, writing = date.today(), found.writing
            entries = [_entry(c, c.id == current, c.id in writing, False, today) for c in found.inside]
            new = button("hc_project_new", _("New chat"), id=project.id, css="hc-new-inside")
            inside = f"{new}<ul>{''.join(entries)}</ul>"
        options = _("Options for {title}").format(title=project.name)
        rows += (
            f'<li class="hc-project" data-project="{project.id}">'
            + button("hc_project", project.name, id=project.id, css="hc-title hc-folder", title=project.name,
                     dir="auto", tabindex="-1", aria_expanded="true" if inside else "false",
                     aria_keyshortcuts="F2 Delete")
            + f'<span class="hc-mark" aria-hidden="true">{project.chats or ""}</span><span class="hc-tools">'
            + button("hc_project_menu", _("Options"), id=project.id, css="hc-icon hc-dots", tabindex="-1",
                     aria_label=options, title=_("Options"), aria_haspopup="menu")
            + f"</span>{inside}</li>"
        )  # fmt: skip
    known = json.dumps({"projects": [asdict(project) for project in found.projects], **choices})
    add = button("hc_project_add", _("New project"), css="hc-icon hc-add-project", title=_("New project"))
    drawn = "" if found.sought else f"<h2>{_('Projects')}</h2>{add}<ul>{rows}</ul>"
    return f'<section class="hc-list hc-projects" data-known="{html.escape(known)}">{drawn}</section>'


def _base(conversation: Conversation) -> str:
    """The title without the number of a fork."""
    return NUMBER.sub("", conversation.title).casefold()


def _entry(conversation: Conversation, current: bool, writing: bool, alike: bool, today: date) -> str:
    """`alike`: another one has the same title, or is a fork of it, so the time of the last message tells them apart."""
    title = conversation.title or _(UNTITLED)
    at = moment(conversation.updated_at)
    clock = time.strftime("%H:%M", time.localtime(conversation.updated_at))
    when = clock if date.fromtimestamp(conversation.updated_at) == today else at
    last = _("Last message: {time}").format(time=at)
    marks = {"aria_current": "page"} if current else {}
    news = _("A reply is being written") if writing else _("A new reply") if conversation.unread else ""
    kind = "hc-writing" if writing else "hc-unread" if news else "hc-no-mark"
    told = ", ".join(filter(None, [news, last if alike else ""]))
    marks |= {"aria_description": told} if told else {}
    state = {"data_pinned": "1"} if conversation.pinned else {}
    state |= {"data_archived": "1"} if conversation.archived else {}
    state |= {"data_project": str(conversation.project_id)} if conversation.project_id else {}
    state |= {"data_tags": json.dumps(conversation.tags)} if conversation.tags else {}
    time_of = f'<small class="hc-when" aria-hidden="true">{when}</small>' if alike else ""
    tags = "".join(f'<span dir="auto">{html.escape(tag)}</span>' for tag in conversation.tags)
    tags = f'<small class="hc-tags">{tags}</small>' if tags else ""
    return (
        f'<li draggable="true" class="{"hc-current" if current else ""}">'
        + button("hc_open", title, id=conversation.id, text=str(conversation.message_id or ""), css="hc-title",
                 title=f"{title}\n{last}", dir="auto", tabindex="-1", aria_keyshortcuts="F2 Delete", **marks)
        + f'<span class="hc-mark {kind}" aria-hidden="true"></span>'
        + '<span class="hc-tools">'
        + button("hc_menu", _("Options"), id=conversation.id, css="hc-icon hc-dots", tabindex="-1",
                 aria_label=_("Options for {title}").format(title=title), title=_("Options"),
                 aria_haspopup="menu", **state)
        + f"</span>{time_of}{tags}{_snippet(conversation.snippet)}</li>"
    )  # fmt: skip


def filters(tags: Iterable[str], query: str) -> str:
    """The tags in use: pressed, one is asked for in the search, and the list holds those that have it."""
    asked = {name.casefold() for name in split_tags(query)[1]}
    drawn = "".join(
        button("hc_filter", tag, text=tag, css="hc-filter", dir="auto",
               aria_pressed="true" if tag.casefold() in asked else "false")
        for tag in tags
    )  # fmt: skip
    if not drawn:
        return ""
    clear = ""
    if asked:
        clear = button("hc_filter", _("Clear"), css="hc-clear", aria_label=_("Show chats of all tags"))
    return f'<div class="hc-filters" role="group" aria-label="{_("Tags")}">{drawn}{clear}</div>'


def _snippet(text: str) -> str:
    """The text around a hit, the words that were found marked; every mark that opens is closed."""
    if not text:
        return ""
    marked = _LEFT_OVER.sub("", _FOUND.sub(r"<mark>\1</mark>", html.escape(text)))
    return f'<small class="hc-snippet" dir="auto">{marked}</small>'


def undo_line(deleted: Deleted) -> str:
    """Draw what was deleted, and the way back for some seconds: the script takes it away then."""
    said = _("Deleted the project “{title}” with its chats.") if deleted.project else _("Deleted “{title}”.")
    said = said.format(title=deleted.title or _(UNTITLED))
    act = "hc_project_restore" if deleted.project else "hc_restore"
    undo = button(act, _("Undo"), id=deleted.id, css="hc-undo-button", aria_keyshortcuts="Control+Z")
    return (
        f'<div class="hc-undo" data-seconds="{deleted.seconds:g}" role="status">'
        f'<span dir="auto">{html.escape(said)}</span>{undo}</div>'
    )


def footer(totals: Totals) -> str:
    """Say how much has been written for this user."""
    if not totals.replies:
        return ""
    replies = plural("{n:,} reply", "{n:,} replies", totals.replies)
    tokens = plural("{n:,} token", "{n:,} tokens", totals.tokens)
    said = _("{replies}, {tokens} written on this machine").format(replies=replies, tokens=tokens)
    return f'<p class="hc-quiet">{said}</p>'


def links(panels: Iterable[Panel], current: str = "") -> str:
    """Draw the links to all panels, the open one marked."""
    entries = ""
    for panel in panels:
        marks: dict[str, Any] = {"aria_current": "page"} if panel.name == current else {}
        link = button("hc_panel", _(panel.title), text=panel.name, css="hc-link", **marks)
        entries += f"<li>{link}</li>"
    return f'<nav class="hc-links" aria-label="{_("Views")}"><ul>{entries}</ul></nav>'


def account(name: str) -> str:
    """Draw the button that logs out, and whose page it is. A guest is asked before (login.js)."""
    out = button("hc_log_out", _("Log out"), text=GUEST if is_guest(name) else "")
    shown = _("guest") if is_guest(name) else name
    return f'<div class="hc-account">{out}<span class="hc-quiet" dir="auto">{html.escape(shown)}</span></div>'


def is_guest(name: str) -> bool:
    """Return whether it is a guest who logged in by this name: no account is called so."""
    return name.startswith(f"{GUEST}-")
