"""Decide who may log in (accounts, or, while there are none, whoever has the guest password), and keep login sessions.
They live in memory: a restart logs everyone out."""

import asyncio
import hashlib
import hmac
import logging
import secrets
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from anyio import CancelScope
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierchat.store import Account, Store, StoreError


class AccountError(Exception):
    """Raised for a name or a password that an account cannot have."""


# Passwords: what is stored of them is an argon2id hash, from which they can only be guessed, slowly.
LEAST, MOST = 8, 1_000
"""Characters."""

_HASHER = PasswordHasher()
"""RFC 9106's second choice: 64 MiB and about 0.1 s for each guess."""


def hashed(password: str) -> str:
    """Hash a password for the store. Raises AccountError if it is too short or too long."""
    password = _same(password)
    if not LEAST <= len(password) <= MOST:
        raise AccountError(
            f"A password has {LEAST} to {MOST:,} characters. Several words are easy to remember."
        )
    return _HASHER.hash(password)


def matches(password: str, stored: str | None) -> bool:
    """Return whether `stored` is a hash of this password. None takes as long, so that time does not reveal accounts."""
    with suppress(VerificationError, InvalidHashError):
        return _HASHER.verify(stored or _nobody(), _same(password)) and stored is not None
    return False


@cache
def _nobody() -> str:
    return _HASHER.hash("nobody's password")


def _same(password: str) -> str:
    return unicodedata.normalize("NFC", password).strip()


GUEST_LOGIN = "guest"
"""Name with which guests log in."""


@dataclass(frozen=True, slots=True)
class Member:
    """A person who has logged in. `name`: of the user in the store; a guest's is made for this one login."""

    name: str
    account: Account | None = None
    """None: a guest, of whom nothing stays."""


class Members:
    """Checks names and passwords against a store. Each call may take a tenth of a second: not for the event loop."""

    def __init__(self, store: Store, guest_password: str) -> None:
        self._store = store
        self._guest_password = guest_password

    def recognise(self, name: str, password: str) -> Member | None:
        """Return the member with this name and password; None if they do not match. Raises StoreError."""
        if self.guests_come:
            # Both are compared, each in a time that tells nothing.
            pairs = ((name, GUEST_LOGIN), (password, self._guest_password))
            same = [hmac.compare_digest(given.encode(), right.encode()) for given, right in pairs]
            return Member(self._store.guests.begin()) if all(same) else None
        account = self._store.accounts.find(name)
        right = matches(password, account.password if account else None)
        return Member(account.name, account) if account and right else None

    def change_password(self, member: Member, stored: str) -> Member:
        """Store the hash of another password, and return the member with its new account. Raises StoreError."""
        return Member(member.name, self._store.accounts.set_password(member.name, stored))

    def still(self, member: Member) -> bool:
        """Tell whether the account with which a member logged in still has that password. Raises StoreError."""
        return member.account is None or self._store.accounts.find(member.name) == member.account

    @property
    def guests_come(self) -> bool:
        """Return True while there are no accounts, so that the guest password counts. Raises StoreError."""
        return not self._store.accounts.all()


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
