"""The login: a page of our own before everything else, which works without scripts."""

from __future__ import annotations

import html
from collections.abc import Callable

from anyio import CapacityLimiter, Lock, to_thread
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from hierchat.language import _, later
from hierchat.store import StoreError
from hierchat.ui.doors.form import Field, TooLong, page, typed
from hierchat.ui.doors.members import GUEST_LOGIN, Member
from hierchat.ui.doors.origins import Origins
from hierchat.ui.doors.password import PasswordDoor
from hierchat.ui.doors.refused import Refused
from hierchat.ui.doors.sessions import LIFE_SECONDS, LoggedIn, LogIns
from hierchat.ui.doors.throttle import ELSEWHERE, HERE, Lane, Throttle, network, of_account

USER = "hierchat.user"
"""Where the name of who is logged in stands in a request's scope."""
SESSION = "hierchat.session"
"""Where their LoggedIn stands there."""
WRONG = later("Name and password do not match.")
_GUESTS = later(
    "Name ({name}) and password stand in the terminal where hierchat was started; the password is new at each start. "
    "What you write is deleted when you log out, after a week at the latest."
)
_ACCOUNTS = later("Whoever runs hierchat here makes accounts, and new passwords for forgotten ones.")


def is_owner(scope: Scope) -> bool:
    """Whether an owner asks: without a login, whoever sits at this machine."""
    session: LoggedIn | None = scope.get(SESSION)
    return session is None or session.owner


class Login:
    """Lets nobody in without a session; `starting` lets Gradio's own call at launch through."""

    def __init__(
        self,
        app: ASGIApp,
        log_ins: LogIns,
        origins: Origins,
        starting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._log_ins = log_ins
        self._origins = origins
        self._starting = starting
        self._throttle = Throttle(log_ins.clock)
        # One guess at a time: else many at once would all be looked at before the first counts as wrong, each with
        # the 64 MiB that a password takes.
        self._guessing = Lock()
        # Of its own: replies that wait may hold all threads that handlers have.
        self._threads = CapacityLimiter(4)
        self._passwords = PasswordDoor(log_ins, self._guess, self._threads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        token = HTTPConnection(scope).cookies.get(_cookie(scope))
        session = self._log_ins.find(token)
        path = scope["path"]
        if scope["type"] == "http" and path in ("/login", "/logout"):
            request = Request(scope, receive)
            answer = (
                await self._login(request, session) if path == "/login" else self._log_out(request, token)
            )
            await answer(scope, receive, send)
        elif scope["type"] == "http" and path == "/password" and session is not None:
            answer = await self._passwords.answer(Request(scope, receive), session)
            await answer(scope, receive, send)
        elif session is not None:
            scope[USER], scope[SESSION] = session.name, session
            await session.serve(self._app, scope, receive, send)
        elif path == "/gradio_api/startup-events" and self._starting():
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _closed(Request(scope))(scope, receive, send)
        else:
            await WebSocketClose(1008)(scope, receive, send)

    async def _login(self, request: Request, session: LoggedIn | None) -> Response:
        if request.method in ("GET", "HEAD"):
            return _to_page(request) if session else await self._page()
        if request.method != "POST":
            return PlainTextResponse(_("Open this page to log in.") + "\n", 405, {"Allow": "GET, HEAD, POST"})
        try:
            name, password = await typed(request, "username", "password")
        except TooLong:
            return await self._page(_("That is too long for a name and a password."), status=413)
        if not name or not password:
            return await self._page(_("Type the name and the password."), name, 400)
        try:
            return await self._answer(request, name, password)
        except Refused as refused:
            answer = await self._page(refused.sentence(_(WRONG)), name, refused.status)
            answer.headers.update(refused.headers)
            return answer
        except StoreError as error:
            return await self._page(str(error), name, 503)

    async def _answer(self, request: Request, name: str, password: str) -> Response:
        """To a name and a password. Raises Refused and StoreError."""
        member = await self._guess(request, name, password)
        token = self._log_ins.begin(member, self._address(request))
        # Programs that log in, such as Gradio's own client, expect no redirect.
        answer = _to_page(request) if _is_page_load(request) else JSONResponse({"success": True})
        answer.set_cookie(
            _cookie(request.scope), token, max_age=LIFE_SECONDS, httponly=True, samesite="lax",
            secure=request.url.scheme == "https" or self._origins.is_shared(request.scope),
        )  # fmt: skip
        return answer

    async def _guess(self, request: Request, name: str, password: str) -> Member:
        """Whose name and password these are. Raises Refused and StoreError."""
        lanes = self._lanes(request, name)
        async with self._guessing:
            if wait := self._throttle.wait(lanes):
                raise Refused(looked_at=False, wait=wait)
            member = await to_thread.run_sync(
                self._log_ins.members.recognise, name, password, limiter=self._threads
            )
            if member is None:
                self._throttle.failed(lanes)
                raise Refused(looked_at=True, wait=self._throttle.wait(lanes))
            self._throttle.succeeded(lanes)
        return member

    def _log_out(self, request: Request, token: str | None) -> Response:
        if request.method != "POST":
            return PlainTextResponse(
                _("To log out, use the button on the page.") + "\n", 405, {"Allow": "POST"}
            )
        self._log_ins.end(token)
        answer = RedirectResponse("login", 303)
        answer.delete_cookie(_cookie(request.scope), httponly=True, samesite="lax")
        return answer

    def _lanes(self, request: Request, name: str) -> list[Lane]:
        here = self._origins.is_local(request.scope)
        # The guest password is too long to be guessed: nobody shall make guests wait.
        account = [of_account(name, here)] if name != GUEST_LOGIN else []
        if here:
            return [HERE, *account]  # of its own: nobody elsewhere can lock out who sits at the machine
        client = request.client.host if request.client else ""
        return [Lane(network(client)), *account, ELSEWHERE]

    def _address(self, request: Request) -> str:
        """Where a browser is, in words."""
        if self._origins.is_shared(request.scope):
            return later("over the public link")
        if self._origins.is_local(request.scope):
            return later("this machine")
        return request.client.host if request.client else later("unknown")

    async def _page(self, said: str = "", name: str = "", status: int = 200) -> Response:
        try:
            guests = await to_thread.run_sync(
                lambda: self._log_ins.members.guests_come, limiter=self._threads
            )
        except StoreError:
            guests = False
        about = _(_GUESTS).format(name=GUEST_LOGIN) if guests else _(_ACCOUNTS)
        fields = [
            Field("username", _("Name"), "username", name),
            Field("password", _("Password"), "current-password"),
        ]
        return page(_("Log in"), fields, _("Log in"), html.escape(about), said, status)


def _cookie(scope: Scope) -> str:
    # A browser sends a host's cookies to all of its ports: two servers on one machine must not overwrite each other's.
    return f"hierchat-{scope['server'][1] if scope.get('server') else ''}"


def _is_page_load(request: Request) -> bool:
    return request.headers.get("sec-fetch-mode") == "navigate" or "text/html" in request.headers.get(
        "accept", ""
    )


def _to_page(request: Request) -> Response:
    # The query travels along: it names the chat that was asked for.
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./", 303)


def _closed(request: Request) -> Response:
    if request.method in ("GET", "HEAD") and _is_page_load(request):
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login{query}", 303, {"Cache-Control": "no-store"})
    return PlainTextResponse(_("Log in first, at /login.") + "\n", 401, {"Cache-Control": "no-store"})
