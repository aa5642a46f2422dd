"""The login: a page of our own before everything else, which works without scripts."""

from __future__ import annotations

import base64
import hmac
import html
import ipaddress
import math
import time
from collections.abc import Callable
from string import Template
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from hierchat.ui.actions import ASSETS
from hierchat.ui.doors.origins import Origins
from hierchat.ui.doors.sessions import LIFE_SECONDS, LogIns
from hierchat.ui.doors.throttle import ELSEWHERE, HERE, Lane, Throttle

USER = "hierchat.user"
"""Where the name of who is logged in stands in a request's scope."""
WRONG = "Name and password do not match."
_MOST_BYTES = 4096


class Login:
    """Lets nobody in without a session; `starting` lets Gradio's own call at launch through."""

    def __init__(
        self,
        app: ASGIApp,
        account: tuple[str, str],
        origins: Origins,
        starting: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._account = account
        self._origins = origins
        self._starting = starting
        self._log_ins = LogIns(clock)
        self._throttle = Throttle(clock)

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
        elif session is not None:
            scope[USER] = session.name
            await session.serve(self._app, scope, receive, send)
        elif path == "/gradio_api/startup-events" and self._starting():
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _closed(Request(scope))(scope, receive, send)
        else:
            await WebSocketClose(1008)(scope, receive, send)

    async def _login(self, request: Request, session: object | None) -> Response:
        if request.method in ("GET", "HEAD"):
            return _to_page(request) if session else _page()
        if request.method != "POST":
            return PlainTextResponse("Open this page to log in.\n", 405, {"Allow": "GET, HEAD, POST"})
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_BYTES:
                return _page("That is too long for a name and a password.", status=413)
        given = parse_qs(body.decode("latin-1"), encoding="utf-8")
        name, password = (given.get(field, [""])[-1].strip() for field in ("username", "password"))
        if not name or not password:
            return _page("Type the name and the password.", name, 400)
        lanes = self._lanes(request)
        if wait := self._throttle.wait(lanes):
            return _too_many("Too many attempts.", name, wait, 429)
        if not self._is_right(name, password):
            self._throttle.failed(lanes)
            return _too_many(WRONG, name, self._throttle.wait(lanes), 401)
        self._throttle.succeeded(lanes[0])
        # Programs that log in, such as Gradio's own client, expect no redirect.
        answer = _to_page(request) if _is_page_load(request) else JSONResponse({"success": True})
        answer.set_cookie(
            _cookie(request.scope), self._log_ins.begin(self._account[0]), max_age=LIFE_SECONDS, httponly=True,
            samesite="lax", secure=request.url.scheme == "https" or self._origins.is_shared(request.scope),
        )  # fmt: skip
        return answer

    def _log_out(self, request: Request, token: str | None) -> Response:
        if request.method != "POST":
            return PlainTextResponse("To log out, use the button on the page.\n", 405, {"Allow": "POST"})
        self._log_ins.end(token)
        answer = RedirectResponse("login", 303)
        answer.delete_cookie(_cookie(request.scope), httponly=True, samesite="lax")
        return answer

    def _is_right(self, name: str, password: str) -> bool:
        # Both are compared, each in a time that tells nothing.
        same = [
            hmac.compare_digest(a.encode(), b.encode())
            for a, b in zip(self._account, (name, password), strict=True)
        ]
        return all(same)

    def _lanes(self, request: Request) -> list[Lane]:
        if self._origins.is_local(request.scope):
            return [HERE]  # of its own: nobody elsewhere can lock out who sits at the machine
        return [Lane(_network(request.client.host if request.client else "")), ELSEWHERE]


def _cookie(scope: Scope) -> str:
    # A browser sends a host's cookies to all of its ports: two servers on one machine must not overwrite each other's.
    return f"hierchat-{scope['server'][1] if scope.get('server') else ''}"


def _network(client: str) -> str:
    """Whose attempts count together: an IPv6 user has 2**64 addresses."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else client


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
    return PlainTextResponse("Log in first, at /login.\n", 401, {"Cache-Control": "no-store"})


def _too_many(what: str, name: str, wait: float, status: int) -> Response:
    if not wait:
        return _page(what, name, status)
    seconds = math.ceil(wait)
    answer = _page(f"{what} Try again in {seconds} second{'s' if seconds > 1 else ''}.", name, status)
    answer.headers["Retry-After"] = str(seconds)
    return answer


def _page(said: str = "", name: str = "", status: int = 200) -> Response:
    palette = (ASSETS / "style" / "palette.css").read_text(encoding="utf-8")
    icon = base64.b64encode((ASSETS / "icon.svg").read_bytes()).decode()
    page = Template((ASSETS / "login.html").read_text(encoding="utf-8")).substitute(
        # Without scripts, the colours of the dark theme come by what the browser prefers.
        palette=palette.replace(".dark {", "@media (prefers-color-scheme: dark) { :root {") + "}",
        icon=icon,
        said=f'<p id="said" role="alert">{html.escape(said)}</p>' if said else "",
        name=html.escape(name),
        focus_name="" if name else "autofocus",
        focus_password="autofocus" if name else "",
        described='aria-describedby="said"' if said else "",
    )
    # Under "no-referrer", a browser would send the form with the Origin "null".
    return HTMLResponse(page, status, {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"})
