"""Draw what a page shows at first into its document: it can be read before Gradio has built the page."""

import logging
from dataclasses import replace
from functools import cache

import gradio as gr
from markupsafe import Markup
from starlette.requests import Request

from hierchat.access.login import USER
from hierchat.language import current
from hierchat.page import status
from hierchat.page.guard import PageEvents
from hierchat.page.page_sessions import Session
from hierchat.page.templates import ASSETS, Macros
from hierchat.store import LOCAL_USER

_log = logging.getLogger(__name__)
_DRAWN = 8
"""Messages of a chat that are drawn, the last ones: they fill a window."""
_PAGE = Macros("page.html")


def first_screen(page: PageEvents, request: Request) -> Markup:
    """Return the list of chats, and the chat of the request's address or the empty page, as HTML with a script that
    takes them away when the page itself is drawn (early.js). Nothing if it cannot be drawn."""
    parts, views, service = page.parts, page.views, page.service
    try:
        session = Session(user=service.users.ensure(request.scope.get(USER) or LOCAL_USER))
        screen = replace(views.at_address(session.user, request.query_params), drawn=_DRAWN)
        session.screen, session.reply = screen, service.in_progress.of(session.user, screen.conversation)
        drawn = views.chats(session) | views.heading(session)
        drawn |= {} if screen.panel else views.middle(session)
        begins = screen.conversation is None and not screen.panel
    except Exception as error:  # the page itself will say what is wrong
        _log.debug("the first screen could not be drawn: %s", type(error).__name__)
        return Markup()
    return _PAGE.first(
        *(Markup(drawn[part]) for part in (parts.list, parts.links, parts.title)),
        host=Markup("" if screen.panel else status.slot_line(service.model_status)),
        login=parts.account.visible,
        thread=Markup(drawn.get(parts.thread, "")),
        growing=Markup(drawn.get(parts.growing, "")),
        begins=begins,
        language=current(),
        gradio=gr.__version__.replace(".", "-"),
        script=_script(),
    )


@cache
def _script() -> Markup:
    return Markup((ASSETS / "page" / "first_screen.js").read_text(encoding="utf-8"))
