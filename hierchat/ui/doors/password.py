"""Another password, for whoever is logged in with an account."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from hierchat.accounts.errors import AccountError
from hierchat.accounts.passwords import LEAST, hashed
from hierchat.language import _
from hierchat.store import StoreError
from hierchat.ui.doors.form import Field, TooLong, page, typed
from hierchat.ui.doors.members import Member
from hierchat.ui.doors.refused import Refused
from hierchat.ui.doors.sessions import LoggedIn, LogIns

Guess = Callable[[Request, str, str], Awaitable[Member]]
"""Whose a name and a password are that somebody gave. Raises Refused and StoreError."""


class PasswordDoor:
    """The page. The password as it is now is asked for, as slowly as at the login."""

    def __init__(self, log_ins: LogIns, guess: Guess, threads: CapacityLimiter) -> None:
        self._log_ins = log_ins
        self._guess = guess
        self._threads = threads

    async def answer(self, request: Request, session: LoggedIn) -> Response:
        """To whoever has this session. A guest has no password of their own."""
        if session.member.account is None:
            return RedirectResponse("./", 303)
        if request.method in ("GET", "HEAD"):
            return _page()
        if request.method != "POST":
            return PlainTextResponse(
                _("Open this page to change the password.") + "\n", 405, {"Allow": "GET, HEAD, POST"}
            )
        try:
            now, new, again = await typed(request, "password", "new", "again")
            return await self._change(request, session, now, new, again)
        except TooLong:
            return _page(_("That is too long for a password."), 413)
        except Refused as refused:
            answer = _page(refused.sentence(_("That is not the password that you have now.")), refused.status)
            answer.headers.update(refused.headers)
            return answer
        except AccountError as error:
            return _page(str(error), 400)
        except StoreError as error:
            return _page(str(error), 503)

    async def _change(self, request: Request, session: LoggedIn, now: str, new: str, again: str) -> Response:
        if new != again:
            return _page(_("The new password was typed in two ways. Type it again."), 400)
        stored = await to_thread.run_sync(hashed, new, limiter=self._threads)
        await self._guess(request, session.name, now)
        await to_thread.run_sync(self._log_ins.change_password, session, stored, limiter=self._threads)
        said = _("Your password is another one now. Other browsers that were logged in are logged out.")
        return page(_("Password"), [], "", _back(), said, heading=_("Password"))


def _page(said: str = "", status: int = 200) -> Response:
    fields = [
        Field("password", _("Password now"), "current-password"),
        Field("new", _("New password, at least {n} characters").format(n=LEAST), "new-password"),
        Field("again", _("New password again"), "new-password"),
    ]
    return page(_("Password"), fields, _("Change it"), _back(), said, status, heading=_("Password"))


def _back() -> str:
    return f'<a href="./?view=settings">{html.escape(_("Back to the settings"))}</a>'
