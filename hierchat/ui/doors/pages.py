"""Each open page belongs to the user who opened it.

Gradio tells pages apart by a number that the browser makes up, the session hash, and asks for nothing more: whoever
knows it could read another page's events, act in its place or close it. Here the first one to use it owns it. Of
Gradio's own routes, those that the page needs are open, since others take a hash in ways of their own.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from urllib.parse import parse_qs

from anyio import CapacityLimiter, to_thread
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hierchat.ui.doors.limits import again, whole
from hierchat.ui.doors.login import USER

MOST_PAGES = 100_000
"""Pages that are remembered."""
_GRADIO = "/gradio_api/"
_OPEN = re.compile(
    r"(?:info|app_id|user|login_check|startup-events|theme\.css|reset|cancel|queue/(?:join|data)|run/[^/]+|heartbeat/[^/]+)/?"
)
_HEARTBEAT = re.compile(r"heartbeat/([^/]+)/?")
_IN_BODY = re.compile(r"(?:cancel|queue/join|run/[^/]+)/?")
_OTHERS = "This page is not yours.\n"
_CLOSED = "hierchat's page does not use this address, so it is closed.\n"


class OwnPages:
    """Stands behind the login."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._owners: OrderedDict[str, str] = OrderedDict()
        """Session hash -> user."""
        self._threads = CapacityLimiter(4)  # of its own: replies that wait may hold all that handlers have

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if USER not in scope or not path.startswith(_GRADIO):
            return await self._app(scope, receive, send)
        route = path.removeprefix(_GRADIO)
        if not _OPEN.fullmatch(route):
            return await PlainTextResponse(_CLOSED, 404)(scope, receive, send)
        hashes = [*_HEARTBEAT.findall(route), *_in_query(scope)]
        if _IN_BODY.fullmatch(route):
            body = await whole(receive)
            if body is None:
                return
            hashes.append(await to_thread.run_sync(_in_body, body, limiter=self._threads))
            receive = again(body, receive)
        if not all(self._is_own(hash, scope[USER]) for hash in hashes):
            return await PlainTextResponse(_OTHERS, 403)(scope, receive, send)
        await self._app(scope, receive, send)

    def _is_own(self, hash: str, user: str) -> bool:
        if not hash:  # all who send none would be one page
            return False
        owner = self._owners.setdefault(hash, user)
        self._owners.move_to_end(hash)
        while len(self._owners) > MOST_PAGES:
            self._owners.popitem(last=False)
        return owner == user


def _in_query(scope: Scope) -> list[str]:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    return query.get("session_hash", [])


def _in_body(body: bytes) -> str:
    """As Gradio reads it; empty where there is none."""
    try:
        given = json.loads(body)
    except ValueError:
        return ""
    hash = given.get("session_hash") if isinstance(given, dict) else None
    return hash if isinstance(hash, str) else ""
