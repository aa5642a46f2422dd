"""Draw the list of conversations as HTML: pinned ones, then by date. Pure functions."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from itertools import groupby

from markupsafe import Markup, escape

from hierchat.chat.conversations import ConversationList
from hierchat.language import _, later
from hierchat.page.templates import Macros
from hierchat.store import FOUND_BEGINS, FOUND_ENDS
from hierchat.store.records import Conversation

_MONTHS = (
    later("Jan"), later("Feb"), later("Mar"), later("Apr"), later("May"), later("Jun"), later("Jul"), later("Aug"),
    later("Sep"), later("Oct"), later("Nov"), later("Dec"),
)  # fmt: skip


def day(when: date) -> str:
    return _("{day} {month}").format(day=when.day, month=_(_MONTHS[when.month - 1]))


def moment(seconds: float) -> str:
    return f"{day(date.fromtimestamp(seconds))}, {time.strftime('%H:%M', time.localtime(seconds))}"


Choices = Mapping[str, Sequence[object]]
"""What there is to choose for a project: names of models, and presets as id and name."""
GUEST = "guest"
"""What a guest is called on the page; their user's name is longer."""
UNTITLED = later("New chat")
_AGES = ((0, later("Today")), (1, later("Yesterday")), (7, later("Last 7 days")), (30, later("Last 30 days")))
_FOUND = re.compile(f"{FOUND_BEGINS}([^{FOUND_BEGINS}{FOUND_ENDS}]*){FOUND_ENDS}")
_LEFT_OVER = re.compile(f"[{FOUND_BEGINS}{FOUND_ENDS}]")


def day_of(updated_at: float, today: date) -> str:
    """Return the heading of the list for a date, by the local calendar of this machine."""
    day = datetime.fromtimestamp(updated_at).date()
    for age, heading in _AGES:
        if (today - day).days <= age:
            return _(heading)
    month = _(_MONTHS[day.month - 1])
    return month if day.year == today.year else f"{month} {day.year}"


def conversation_list(
    found: ConversationList, current: int | None, today: date, query: str = "", *, show_archived: bool = False
) -> Markup:
    """Draw chats in order, the open one marked, with ways to more and to archived ones, or `show_archived` only."""

    def heading(conversation: Conversation) -> str:
        if conversation.archived and not show_archived:
            return _("Archived")
        return _("Pinned") if conversation.pinned else day_of(conversation.updated_at, today)

    groups = [(name, list(chats)) for name, chats in groupby(found.conversations, key=heading)]
    return _drawn.conversations(groups, found, current, query.strip(), show_archived)


def projects(found: ConversationList, unfolded: int | None, current: int | None, choices: Choices) -> Markup:
    """Draw the projects, one of them unfolded with its chats. Their dialogs read the choices from the HTML."""
    known = json.dumps({"projects": [asdict(project) for project in found.projects], **choices})
    return _drawn.projects(found, unfolded, current, known)


def _marked(text: str) -> Markup:
    return Markup(_LEFT_OVER.sub("", _FOUND.sub(r"<mark>\1</mark>", str(escape(text)))))


def is_guest(name: str) -> bool:
    """Return whether a user of this name is a guest: no account is called so."""
    return name.startswith(f"{GUEST}-")


_drawn = Macros(
    "sidebar.html", GUEST=GUEST, is_guest=is_guest, json=json.dumps, marked=_marked, moment=moment
)
undo_line, links, account = _drawn.undo_line, _drawn.links, _drawn.account
