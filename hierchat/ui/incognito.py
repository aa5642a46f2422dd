"""Conversations that leave nothing: the switch on the empty page, and their end when the page leaves them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from hierchat.language import _, later
from hierchat.store import StoreError
from hierchat.ui.actions import button

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService
    from hierchat.ui.sessions import Session

_OFFER = later("Not kept: drafts from no other chat and for none, and is erased when you leave it.")
_OPEN = later("Incognito. This chat is erased when you leave it, close the page or load it again.")

log = logging.getLogger(__name__)


def line(session: Session) -> str:
    """Above the conversation: the switch where a new one will begin, a reminder in an incognito one; else nothing."""
    if session.panel:
        return ""
    if session.conversation is None:
        on = "true" if session.incognito else "false"
        switch = button("hc_incognito", _("Incognito"), css="hc-switch", role="switch", aria_checked=on)
        return f'<div class="hc-secret">{switch}<span>{_(_OFFER)}</span></div>'
    if session.conversation != session.secret:
        return ""
    keep = button("hc_incognito_keep", _("Keep it after all"), id=session.conversation)
    return f'<div class="hc-secret hc-open-secret"><span>{_(_OPEN)}</span>{keep}</div>'


def begin(service: ChatService, session: Session, user_id: int) -> int:
    """A new conversation, incognito where that is switched on."""
    if not session.incognito:
        return service.store.create_conversation(user_id)
    session.secret, session.incognito = service.store.begin_incognito(user_id), False
    return session.secret


def left(service: ChatService, session: Session) -> None:
    """The page may have left its incognito conversation: then that ends. Does not wait for it."""
    if session.secret is None or session.secret == session.conversation or session.user is None:
        return
    ended, session.secret = session.secret, None
    thread = threading.Thread(target=_end, args=[service, session.user, ended], name="incognito", daemon=True)
    thread.start()


def _end(service: ChatService, user_id: int, conversation: int) -> None:
    service.in_progress.end(user_id, conversation)
    try:
        service.store.end_incognito(user_id, conversation)
    except StoreError as error:
        log.warning("An incognito chat stays in the file, out of sight, until hierchat ends: %s", error)
