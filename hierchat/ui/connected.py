"""Who is connected: in the owner's settings, where there is a login."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import Any

import gradio as gr

from hierchat.language import _
from hierchat.store import Store
from hierchat.ui import status
from hierchat.ui.account import shown_name
from hierchat.ui.actions import button
from hierchat.ui.dates import moment
from hierchat.ui.doors.sessions import LoggedIn, LogIns
from hierchat.ui.owner import require_owner
from hierchat.ui.panels.panel import QUIET, Who

_NOW_SECONDS = 60.0
"""An open page asks for news once a second, or, in the background, once a minute."""


class Connected:
    """The part of the settings."""

    def __init__(self, store: Store, log_ins: LogIns | None) -> None:
        self._store = store
        self._log_ins = log_ins

    def build(self) -> None:
        """Its component."""
        self._list = gr.HTML("", elem_id="hc-connected")

    def wire(self, bus: Any, who: Who, live: Any) -> None:
        """Join its buttons, which stand in generated HTML."""

        def end(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
            user = who(request)[1]
            require_owner(self._store, user)
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
        if self._log_ins is None or not self._store.is_owner(user_id):
            return {self._list: ""}
        return {self._list: drawn(self._log_ins.connected(), time.time())}


def drawn(sessions: Sequence[LoggedIn], now: float) -> str:
    """The list as HTML; `now`: Unix time."""
    rows = "".join(_row(session, now) for session in sessions)
    return f'<h2>{_("Who is connected")}</h2><ul class="hc-rows hc-sessions">{rows}</ul>'


def _row(session: LoggedIn, now: float) -> str:
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
