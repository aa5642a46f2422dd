"""The endpoint as an ASGI app in front of the page: its addresses, and who may ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.server.anthropic import messages
from hierchat.server.asking import Desk
from hierchat.server.chat import chat
from hierchat.server.completions import complete
from hierchat.server.door import CALLER, admit
from hierchat.server.errors import Refused, refused
from hierchat.server.models import listed
from hierchat.server.responses import respond
from hierchat.server.tokens import detokenize, tokenize

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

Handler = Callable[[Request, Desk], Awaitable[Response]]
PREFIX = "/v1/"


async def health(request: Request, desk: Desk) -> Response:
    """Whether a model can answer, as llama.cpp's server says it."""
    if desk.service.host.hosted is None:
        error = {"code": 503, "message": "No model is loaded", "type": "unavailable_error"}
        return JSONResponse({"error": error}, 503)
    return JSONResponse({"status": "ok"})


async def models(request: Request, desk: Desk) -> Response:
    """Those that are on this machine."""
    found = await asyncio.to_thread(listed, desk.service)
    return JSONResponse({"object": "list", "data": found})


async def model(request: Request, desk: Desk) -> Response:
    """One of them."""
    name = request.path_params["name"]
    for one in await asyncio.to_thread(listed, desk.service):
        if one["id"] == name:
            return JSONResponse(one)
    raise Refused(404, f"No model on this machine is called {name!r}.", "model", "model_not_found")


ADDRESSES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/health", health),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", model),
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", complete),
    ("POST", "/v1/responses", respond),
    ("POST", "/v1/messages", messages),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
)
_ALONE = {path for _, path, _ in ADDRESSES if not path.startswith(PREFIX)}


class Endpoint:
    """Answers its own addresses while the store lets anybody ask, and hands everything else on to `app`.

    `is_local`: whether a request was made on this machine.
    """

    def __init__(self, app: ASGIApp, service: ChatService, is_local: Callable[[Scope], bool]) -> None:
        self._app = app
        self._store = service.store
        self._is_local = is_local
        desk = Desk(service)
        self._router = Router(
            [
                Route(path, partial(_answer, handler=handler, desk=desk), methods=[method])
                for method, path, handler in ADDRESSES
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith(PREFIX) or path in _ALONE):
            return await self._app(scope, receive, send)
        access = await asyncio.to_thread(self._store.access)
        if access == "off":
            return await self._app(scope, receive, send)
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            scope[CALLER] = await asyncio.to_thread(admit, scope, access, self._store, self._is_local)
            await self._router(scope, receive, watched)
        except Exception as error:
            if begun:
                raise
            await refused(error).response()(scope, receive, send)


async def _answer(request: Request, *, handler: Handler, desk: Desk) -> Response:
    return await handler(request, desk)
