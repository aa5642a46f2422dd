"""Guard the page by a login: a form that works without scripts, the password page, waits after wrong passwords."""

import base64
import ipaddress
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

from anyio import CapacityLimiter, Lock, to_thread
from jinja2 import Environment
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from hierchat.access.hosts import AllowedHosts, is_loopback
from hierchat.access.login_sessions import (
    GUEST_LOGIN,
    LEAST,
    LIFE_SECONDS,
    AccountError,
    LoginSession,
    LoginSessions,
    Member,
    hashed,
)
from hierchat.config import shipped
from hierchat.language import _, current, error_words, later, plural
from hierchat.store import StoreError
from hierchat.store.users import normal

# The pages of the login: forms that work without scripts, and fetch nothing.
_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of a form. `autocomplete`: the attribute of HTML; for passwords it tells old from new."""

    name: str
    label: str
    autocomplete: str
    value: str = ""


async def form_values(request: Request, *names: str) -> list[str]:
    """Read these fields of a form, stripped of blanks; empty where nothing was sent. Raises HTTPException."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, _("That is too long for a name and a password."))
    given = parse_qs(body.decode("latin-1"), encoding="utf-8")
    return [given.get(name, [""])[-1].strip() for name in names]


def form_page(
    title: str,
    fields: Sequence[FormField],
    action: str,
    about: str,
    said: str = "",
    refused: HTTPException | None = None,
    *,
    heading: str = "hierchat",
) -> HTMLResponse:
    """Draw an HTML page with a form, or its text only. `action`: the button's name; `about`: below; `said`: result, or
    why the form was `refused`."""
    assets = shipped("assets")
    palette = (assets / "style" / "palette.css").read_text(encoding="utf-8")
    # Without scripts, the colours of the dark theme come by what the browser prefers.
    palette = palette.replace(".dark {", "@media (prefers-color-scheme: dark) { :root {") + "}"
    icon = base64.b64encode((assets / "icon.svg").read_bytes()).decode()
    form = Environment(autoescape=True).from_string((assets / "form.html").read_text(encoding="utf-8"))
    drawn = form.render(
        language=current(), title=title, heading=heading, palette=Markup(palette), icon=icon, fields=fields,
        action=action, about=about, said=refused.detail if refused else said,
    )  # fmt: skip
    # Under "no-referrer", a browser would send the form with the Origin "null".
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
    if refused:
        return HTMLResponse(drawn, refused.status_code, headers | dict(refused.headers or {}))
    return HTMLResponse(drawn, 200, headers)


# A password that did not let anybody in: what is said, and for how long no other is looked at.
def _refusal(status: int, said: str, wait: float) -> HTTPException:
    if not (seconds := math.ceil(wait)):
        return HTTPException(status, said)
    again = plural("Try again in {n} second.", "Try again in {n} seconds.", seconds)
    return HTTPException(status, f"{said} {again}", {"Retry-After": str(seconds)})


def _refused(error: Exception) -> HTTPException:
    if isinstance(error, HTTPException):
        return error
    return HTTPException(400 if isinstance(error, AccountError) else 503, error_words(error))


def _password_page(refused: HTTPException | None = None) -> Response:
    fields = [
        FormField("password", _("Current password"), "current-password"),
        FormField("new", _("New password, at least {n} characters").format(n=LEAST), "new-password"),
        FormField("again", _("New password again"), "new-password"),
    ]
    title = _("Password")
    return form_page(title, fields, _("Change password"), _back(), refused=refused, heading=title)


def _back() -> str:
    return Markup('<a href="./?view=settings">{}</a>').format(_("Back to the settings"))


# How long to wait after wrong passwords.
FORGET_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class AttemptGroup:
    """Login attempts that are counted together: some are free, then each wait is twice the last one."""

    name: str
    free: int = 4
    longest_seconds: float = 60


HERE = AttemptGroup("this machine")
# All from elsewhere together. Short waits: who floods it must not lock everybody out for long.
ELSEWHERE = AttemptGroup("elsewhere", free=20, longest_seconds=8)


def of_account(name: str, here: bool) -> AttemptGroup:
    """Return the group of login attempts at one name, existing or not: from elsewhere at most two a minute."""
    return AttemptGroup(
        f"account {normal(name)} {HERE.name if here else ELSEWHERE.name}", free=8, longest_seconds=30
    )


class Throttle:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: dict[str, tuple[int, float]] = {}
        """Lane -> how many, and when the last one was."""

    def wait(self, lanes: list[AttemptGroup]) -> float:
        """Return the seconds until the next login attempt of these groups counts; 0 if it does now."""
        waits = [0.0]
        for lane in lanes:
            count, last = self._wrong.get(lane.name, (0, 0.0))
            if count >= lane.free:
                seconds = min(2.0 ** min(count - lane.free, 16), lane.longest_seconds)
                waits.append(last + seconds - self._clock())
        return max(waits)

    def failed(self, lanes: list[AttemptGroup]) -> None:
        now = self._clock()
        self._wrong = {name: it for name, it in self._wrong.items() if it[1] + FORGET_SECONDS > now}
        for lane in lanes:
            count, _ = self._wrong.get(lane.name, (0, now))
            self._wrong[lane.name] = (count + 1, now)

    def succeeded(self, lanes: list[AttemptGroup]) -> None:
        """Reset the waits of these groups after a right password, but for the group that all addresses share."""
        for lane in lanes:
            if lane is not ELSEWHERE:
                self._wrong.pop(lane.name, None)


def network(client: str) -> str:
    """Return the network of an address, whose attempts and connections count together: IPv6 users have 2**64."""
    with suppress(ValueError):
        address = ipaddress.ip_address(client)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return client


USER = "hierchat.user"
"""Where the name of who is logged in stands in a request's scope."""
SESSION = "hierchat.session"
"""Where the LoginSession stands there."""
_INSTALLING = ("/manifest.json", "/icon.png")
"""Name and icon for installing the page as an app. Browsers ask for them without cookies."""
WRONG = later("Name and password do not match.")
_GUESTS = later(
    "Name ({name}) and password stand in the terminal where hierchat was started; the password is new at each start. "
    "What you write is deleted when you log out, after a week at the latest."
)
_ACCOUNTS = later("Whoever runs hierchat here makes accounts, and new passwords for forgotten ones.")


def is_owner(scope: Scope) -> bool:
    """Tell whether the request comes from an owner: without a login, from whoever sits at this machine."""
    session: LoginSession | None = scope.get(SESSION)
    return session is None or session.owner


@dataclass(eq=False)
class LoginMiddleware:
    """Lets only requests with a login session through; `starting` lets Gradio's own call at launch through."""

    _app: ASGIApp
    _log_ins: LoginSessions
    _origins: AllowedHosts
    starting: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._throttle = Throttle(self._log_ins.clock)
        # One guess at a time: else many at once would all be looked at before the first counts as wrong, each with
        # the 64 MiB that a password takes.
        self._guessing = Lock()
        # Of its own: replies that wait may hold all threads that handlers have.
        self._threads = CapacityLimiter(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        token = HTTPConnection(scope).cookies.get(_cookie(scope))
        session = self._log_ins.find(token)
        path = scope["path"]
        if scope["type"] == "http" and path in ("/login", "/logout"):
            request = Request(scope, receive)
            login = path == "/login"
            answer = await self._login(request, session) if login else self._log_out(request, token)
            await answer(scope, receive, send)
        elif scope["type"] == "http" and path == "/password" and session is not None:
            answer = await self._password(Request(scope, receive), session)
            await answer(scope, receive, send)
        elif session is not None:
            scope[USER], scope[SESSION] = session.name, session
            await session.serve(self._app, scope, receive, send)
        elif (path == "/gradio_api/startup-events" and self.starting()) or (
            path in _INSTALLING and scope.get("method") in ("GET", "HEAD")
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _closed(Request(scope))(scope, receive, send)
        else:
            await WebSocketClose(1008)(scope, receive, send)

    async def _login(self, request: Request, session: LoginSession | None) -> Response:
        if request.method != "POST":
            return _to_page(request) if session else await self._page()
        name = ""
        try:
            name, password = await form_values(request, "username", "password")
            if not name or not password:
                raise HTTPException(400, _("Type the name and the password."))
            member = await self._guess(request, name, password, _(WRONG))
        except (HTTPException, StoreError) as error:
            return await self._page(_refused(error), name)
        token = self._log_ins.begin(member, self._address(request))
        # Programs that log in, such as Gradio's own client, expect no redirect.
        answer = _to_page(request) if _is_page_load(request) else JSONResponse({"success": True})
        answer.set_cookie(
            _cookie(request.scope), token, max_age=LIFE_SECONDS, httponly=True, samesite="lax",
            secure=request.url.scheme == "https" or self._origins.is_public(request.scope),
        )  # fmt: skip
        return answer

    async def _guess(self, request: Request, name: str, password: str, wrong: str) -> Member:
        """Return the member of this name and password. Raises StoreError, HTTPException (`wrong`: what it says)."""
        lanes = self._lanes(request, name)
        async with self._guessing:
            if wait := self._throttle.wait(lanes):
                raise _refusal(429, _("Too many attempts."), wait)
            member = await to_thread.run_sync(
                self._log_ins.members.recognise, name, password, limiter=self._threads
            )
            if member is None:
                self._throttle.failed(lanes)
                raise _refusal(401, wrong, self._throttle.wait(lanes))
            self._throttle.succeeded(lanes)
        return member

    async def _password(self, request: Request, session: LoginSession) -> Response:
        if session.member.account is None:
            return RedirectResponse("./", 303)
        if request.method != "POST":
            return _password_page()
        try:
            now, new, again = await form_values(request, "password", "new", "again")
            if new != again:
                raise HTTPException(400, _("The two new passwords differ. Type them again."))
            stored = await to_thread.run_sync(hashed, new, limiter=self._threads)
            await self._guess(request, session.name, now, _("That is not your current password."))
            await to_thread.run_sync(self._log_ins.change_password, session, stored, limiter=self._threads)
        except (HTTPException, AccountError, StoreError) as error:
            return _password_page(_refused(error))
        said = _("Your password was changed. Other browsers are logged out.")
        return form_page(_("Password"), [], "", _back(), said, heading=_("Password"))

    def _log_out(self, request: Request, token: str | None) -> Response:
        if request.method != "POST":
            return _to_page(request)
        self._log_ins.end(token)
        answer = RedirectResponse("login", 303)
        answer.delete_cookie(_cookie(request.scope), httponly=True, samesite="lax")
        return answer

    def _lanes(self, request: Request, name: str) -> list[AttemptGroup]:
        here = self._origins.is_local(request.scope)
        # The guest password is too long to be guessed: nobody shall make guests wait.
        account = [of_account(name, here)] if name != GUEST_LOGIN else []
        if here:
            return [HERE, *account]  # of its own: nobody elsewhere can lock out who sits at the machine
        client = request.client.host if request.client else ""
        return [AttemptGroup(network(client)), *account, ELSEWHERE]

    def _address(self, request: Request) -> str:
        if request.client and not is_loopback(request.client.host):
            return request.client.host
        if self._origins.is_public(request.scope):
            return later("over the public link")
        return later("this machine") if self._origins.is_local(request.scope) else later("unknown")

    async def _page(self, refused: HTTPException | None = None, name: str = "") -> Response:
        members, guests = self._log_ins.members, False
        with suppress(StoreError):
            guests = await to_thread.run_sync(lambda: members.guests_come, limiter=self._threads)
        about = _(_GUESTS).format(name=GUEST_LOGIN) if guests else _(_ACCOUNTS)
        fields = [
            FormField("username", _("Name"), "username", name),
            FormField("password", _("Password"), "current-password"),
        ]
        return form_page(_("Log in"), fields, _("Log in"), about, refused=refused)


def _cookie(scope: Scope) -> str:
    # A browser sends a host's cookies to all of its ports: two servers on one machine must not overwrite each other's.
    return f"hierchat-{scope['server'][1] if scope.get('server') else ''}"


def _is_page_load(request: Request) -> bool:
    headers = request.headers
    return headers.get("sec-fetch-mode") == "navigate" or "text/html" in headers.get("accept", "")


def _to_page(request: Request) -> Response:
    # The query travels along: it names the chat that was asked for.
    return RedirectResponse(f"./?{request.url.query}" if request.url.query else "./", 303)


def _closed(request: Request) -> Response:
    if request.method in ("GET", "HEAD") and _is_page_load(request):
        query = f"?{request.url.query}" if request.url.query else ""
        # Relative: a proxy may serve this below a path of its own.
        up = "../" * (request.url.path.count("/") - 1)
        return RedirectResponse(f"{up}login{query}", 303, {"Cache-Control": "no-store"})
    return PlainTextResponse(_("Log in first, at /login.") + "\n", 401, {"Cache-Control": "no-store"})
