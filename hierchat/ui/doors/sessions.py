"""Who is logged in. Lives in memory: a restart logs everyone out."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from anyio import CancelScope
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LIFE_SECONDS = 7 * 24 * 3600


@dataclass(eq=False, slots=True)
class LoggedIn:
    """One browser that gave the password."""

    name: str
    expires: float
    ended: bool = False
    _listening: set[CancelScope] = field(default_factory=set)

    def end(self) -> None:
        """Also ends what is still being sent; to be called in the event loop that sends it."""
        self.ended = True
        for scope in self._listening:
            scope.cancel()

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs a request; when the session ends before it does, the app is told that the browser is gone."""
        streaming = False

        async def until_ended() -> Message:
            if not self.ended:
                with CancelScope() as listening:
                    self._listening.add(listening)
                    try:
                        return await receive()
                    finally:
                        self._listening.discard(listening)
            return {"type": f"{scope['type']}.disconnect"}

        async def nothing_new(message: Message) -> None:
            nonlocal streaming
            if message["type"] == "http.response.start":
                streaming = "content-length" not in Headers(raw=message["headers"])
            elif message["type"] == "http.response.body":
                if streaming and self.ended and message.get("more_body"):
                    return
                streaming = streaming and message.get("more_body", False)
            await send(message)

        await app(scope, until_ended, nothing_new)
        if self.ended and streaming:
            await send({"type": "http.response.body", "body": b""})


class LogIns:
    """Sessions by the token in the cookie. A hash of it is looked up, so that the time taken tells nothing of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[bytes, LoggedIn] = {}

    def begin(self, name: str) -> str:
        """A new session's token."""
        for key in [key for key, session in self._sessions.items() if session.expires <= self._clock()]:
            del self._sessions[key]
        token = secrets.token_urlsafe(32)
        self._sessions[_hash(token)] = LoggedIn(name, self._clock() + LIFE_SECONDS)
        return token

    def find(self, token: str | None) -> LoggedIn | None:
        """The session of this token, while it lasts."""
        session = self._sessions.get(_hash(token)) if token else None
        return session if session is not None and session.expires > self._clock() else None

    def end(self, token: str | None) -> None:
        """The token opens nothing from now on."""
        session = self._sessions.pop(_hash(token), None) if token else None
        if session is not None:
            session.end()


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
