"""Put the HTTP endpoint as an ASGI app in front of the page: its addresses, and who may ask them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from anyio import move_on_after
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.api import anthropic, requests
from hierchat.api.keys import CALLER, ApiError, as_api_error, authenticate
from hierchat.api.openai import chat, complete
from hierchat.api.requests import Serving, listed
from hierchat.chat.service import ChatService
from hierchat.store import StoreError

Handler = Callable[..., Awaitable[Response]]  # (request, serving=...)
PREFIX = "/v1/"
LOOK_SECONDS = 2.0
"""How soon a reply ends whose key was removed."""
log = logging.getLogger(__name__)


async def health(request: Request, serving: Serving) -> Response:
    """Answer `/health`: whether a model can reply, as llama.cpp's server does."""
    if serving.service.served is None:
        error = {"code": 503, "message": "No model is loaded", "type": "unavailable_error"}
        return JSONResponse({"error": error}, 503)
    return JSONResponse({"status": "ok"})


async def models(request: Request, serving: Serving) -> Response:
    found = await asyncio.to_thread(listed, serving.service)
    return JSONResponse({"object": "list", "data": found})


async def model(request: Request, serving: Serving) -> Response:
    name = request.path_params["name"]
    for one in await asyncio.to_thread(listed, serving.service):
        if one["id"] == name:
            return JSONResponse(one)
    raise ApiError(404, f"No model on this machine is called {name!r}.", "model", "model_not_found")


ADDRESSES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/health", health),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", model),
    ("POST", "/v1/chat/completions", chat),
    ("POST", "/v1/completions", complete),
    ("POST", "/v1/messages", anthropic.messages),
)
_ALONE = {path for _, path, _ in ADDRESSES if not path.startswith(PREFIX)}


class Endpoint:
    """Answers its own addresses while the store lets anybody ask; `app` answers all others."""

    def __init__(self, app: ASGIApp, service: ChatService, is_local: Callable[[Scope], bool]) -> None:
        self._app = app
        self._keys = service.keys
        self._is_local = is_local
        serving = Serving(service)
        routes = [Route(at, partial(act, serving=serving), methods=[method]) for method, at, act in ADDRESSES]
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith(PREFIX) or path in _ALONE):
            return await self._app(scope, receive, send)
        is_message = path.startswith("/v1/messages")
        error_body = anthropic.error_body if is_message else ApiError.body
        failure = anthropic.failure if is_message else requests.failure

        async def refuse(error: Exception) -> None:
            problem = as_api_error(error)
            answer = JSONResponse(error_body(problem), problem.status, problem.headers)
            await answer(scope, receive, send)

        try:
            access = await asyncio.to_thread(self._keys.access)
        except StoreError as error:
            return await refuse(error)
        if access == "off":
            return await self._app(scope, receive, send)
        begun, shut = False, None

        async def while_admitted() -> Message:
            """Receive a message, or a disconnect once the key or the endpoint is switched off: a reply polls this."""
            nonlocal shut
            while shut is None:
                with move_on_after(LOOK_SECONDS):
                    return await receive()
                shut = await asyncio.to_thread(self._shut, scope)
            return {"type": "http.disconnect"}

        async def watched(message: Message) -> None:
            nonlocal begun
            if shut is None:
                begun = True
                await send(message)

        try:
            scope[CALLER] = await asyncio.to_thread(authenticate, scope, access, self._keys, self._is_local)
            await self._router(scope, while_admitted, watched)
            if shut is not None:
                raise shut
        except Exception as error:
            if begun and shut is None:
                raise
            if begun:
                return await send({"type": "http.response.body", "body": failure(shut or error).encode()})
            await refuse(shut or error)

    def _shut(self, scope: Scope) -> ApiError | None:
        try:
            if (access := self._keys.access()) == "off":
                return ApiError(403, "The endpoint was switched off.")
            authenticate(scope, access, self._keys, self._is_local)
        except ApiError as error:
            return error
        except StoreError as error:  # a file that is busy now is not so in some seconds
            log.info("A key could not be looked up: %s", type(error).__name__)
        return None
