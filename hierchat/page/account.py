"""The login as the page shows it: whose page it is, the way out, and what goes when a guest has left."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import gradio as gr

from hierchat.access.files import files
from hierchat.language import _
from hierchat.page.buttons import button
from hierchat.page.panels.panel import QUIET
from hierchat.store import StoreError

if TYPE_CHECKING:
    from hierchat.access.login_sessions import LoginSession
    from hierchat.access.members import Member
    from hierchat.chat.service import ChatService
    from hierchat.page.unsent import KeptFiles

_GUEST = "guest"
"""What a guest is called on the page; their user's name is longer."""


def build() -> Any:
    """Make the component of the login, at the end of the sidebar."""
    return gr.HTML(line("", guest=False), elem_id="hc-log-out")


def build_password() -> Any:
    """Make the link to the page that changes the password, in the settings."""
    return gr.HTML("", elem_id="hc-password")


def wire(app: gr.Blocks, component: Any, password: Any) -> None:
    """Draw account and password link once, when the page is opened."""

    def show(request: gr.Request) -> dict[Any, Any]:
        name = request.username or ""
        guest = name.startswith(f"{_GUEST}-")  # no account is called so
        shown = line(_("guest") if guest else name, guest=guest)
        return {component: shown, password: "" if guest else to_password(name)}

    app.load(show, None, [component, password], **QUIET)


def to_password(name: str) -> str:
    """Draw the account and the link to its password."""
    logged_in = _("You are logged in as {name}.").format(name=html.escape(name))
    link = f'<a href="password">{_("Change the password")}</a>'
    return f"<h2>{_('Your account')}</h2><p>{logged_in} {link}</p>"


def line(name: str, *, guest: bool) -> str:
    """Draw the button that logs out, and whose page it is. A guest is asked before (login.js)."""
    out = button("hc_log_out", _("Log out"), text=_GUEST if guest else "")
    return f'<div class="hc-account">{out}<span class="hc-quiet" dir="auto">{html.escape(name)}</span></div>'


def shown_name(session: LoginSession) -> str:
    """Return the name of a logged-in user as the owner reads it."""
    return session.name if session.member.account else _GUEST


def forget_guest(service: ChatService, kept: KeptFiles, member: Member) -> None:
    """Delete all that a guest has, when their login has ended. Raises StoreError where that has to be tried again."""
    if member.account is not None:
        return
    files.forget(member.name)
    if (user := service.users.ids().get(member.name)) is not None:
        kept.forget(user)
        whole = service.forget_user(user)
    else:  # tried before, or never here
        whole = service.data.rewrite()
    if not whole:
        raise StoreError(_("Another program keeps what a guest wrote in the file."))
