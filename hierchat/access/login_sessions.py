"""Keep the login sessions. They live in memory: a restart logs everyone out."""

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from anyio import CancelScope
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.access.members import Member, Members
from hierchat.store import StoreError

LIFE_SECONDS = 7 * 24 * 3600
MOST_SESSIONS = 100
"""Of one account, such as programs leave that log in again for everything. Of more, the one seen longest ago ends."""
SWEEP_SECONDS = 5.0
"""How soon a login ends whose time is over, or whose account has changed."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class LoginSession:
    """Session of one browser that logged in."""

    member: Member
    address: str
    """Where it was when it did, for the owner's eye."""
    expires: float
    """On the clock of LoginSessions."""
    since: float = field(default_factory=time.time)
    seen: float = field(default_factory=time.time)
    """When it asked for something last; both are Unix times."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Names it in the owner's list. It opens nothing."""
    ended: bool = False
    _listening: set[CancelScope] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def owner(self) -> bool:
        return self.member.account is not None and self.member.account.owner

    def end(self) -> None:
        """End the session, and cut off the replies that are still being sent. From any thread."""
        self.ended = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has ended before
                self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        for scope in self._listening:
            scope.cancel()

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request of the session; if the session ends first, the app is told that the browser is gone."""
        self.seen, self._loop = time.time(), asyncio.get_running_loop()
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


class LoginSessions:
    """Holds login sessions by the token in the cookie. Its hash is looked up, so that the time tells nothing of it."""

    def __init__(self, members: Members, clock: Callable[[], float] = time.monotonic) -> None:
        self.members = members
        self.on_end: list[Callable[[Member], None]] = []
        """Called once a session has ended, in a thread of its own; again after a while where that raises StoreError."""
        self._again: list[Member] = []
        self._telling: list[threading.Thread] = []
        self.clock = clock
        self._sessions: dict[bytes, LoginSession] = {}
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        """Held while a session and its account are not of one password."""
        self._sweeper: threading.Thread | None = None
        self._closed = threading.Event()

    def begin(self, member: Member, address: str = "") -> str:
        token = secrets.token_urlsafe(32)
        with self._lock:
            theirs = [key for key, one in self._sessions.items() if one.name == member.name]
            theirs.sort(key=lambda key: self._sessions[key].seen)
            self._sessions[_hash(token)] = LoginSession(member, address, self.clock() + LIFE_SECONDS)
            if self._sweeper is None:
                self._sweeper = threading.Thread(target=self._sweep_on, name="log-ins", daemon=True)
                self._sweeper.start()
        self._end(theirs[: max(len(theirs) + 1 - MOST_SESSIONS, 0)])
        return token

    def find(self, token: str | None) -> LoginSession | None:
        """Return the session of this token; None if there is none or it has expired."""
        with self._lock:
            session = self._sessions.get(_hash(token)) if token else None
        return session if session is not None and session.expires > self.clock() else None

    def connected(self) -> list[LoginSession]:
        """Return all sessions that have not expired, the last one seen first."""
        with self._lock:
            lasting = [one for one in self._sessions.values() if one.expires > self.clock()]
        return sorted(lasting, key=lambda one: -one.seen)

    def end(self, token: str | None) -> None:
        if token:
            self._end([_hash(token)])

    def end_of(self, id: str) -> LoginSession | None:
        """End the session of this id, and return it; None if it has ended before."""
        with self._lock:
            found = [key for key, session in self._sessions.items() if session.id == id]
        return next(iter(self._end(found)), None)

    def change_password(self, session: LoginSession, stored: str) -> None:
        """Change the password of the session's user (`stored`: hash), and end other sessions. Raises StoreError."""
        with self._changing:
            session.member = self.members.change_password(session.member, stored)
        self.sweep()

    def sweep(self) -> None:
        """End the sessions that have expired, or whose account is gone or has another password."""
        with self._lock:
            held = list(self._sessions.items())
        over = [key for key, session in held if session.expires <= self.clock()]
        # A file that is busy now is not so in some seconds.
        with suppress(StoreError), self._changing:
            over += [key for key, session in held if not self.members.still(session.member)]
        self._end(over)
        again, self._again = self._again, []
        for member in again:
            self._tell(member)

    def close(self) -> None:
        """Wait for the threads that use the store, so that it can be closed."""
        self._closed.set()
        for thread in filter(None, [self._sweeper, *self._telling]):
            thread.join()

    def _end(self, keys: Iterable[bytes]) -> list[LoginSession]:
        with self._lock:
            ended = [session for key in keys if (session := self._sessions.pop(key, None)) is not None]
        for session in ended:
            session.end()
            telling = threading.Thread(target=self._tell, args=[session.member], name="log-out", daemon=True)
            telling.start()
            self._telling = [*(one for one in self._telling if one.is_alive()), telling]
        return ended

    def _tell(self, member: Member) -> None:
        for then in self.on_end:
            try:
                then(member)
            except StoreError as error:
                log.warning("Something of a login that has ended is left: %s", type(error).__name__)
                self._again.append(member)

    def _sweep_on(self) -> None:
        while not self._closed.wait(SWEEP_SECONDS):
            self.sweep()


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
