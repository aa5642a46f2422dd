"""Who may ask the endpoint. Host and Origin have been checked before (ui/doors/origins.py): no page of another site
comes so far, and nothing tells a browser that it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from hierchat.server.errors import Refused
from hierchat.store import Access, Key, Store

CALLER = "hierchat.caller"
"""Where the caller stands in a request's scope."""
_HANDED_ON = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
NOBODY = 0
NO_KEY = (
    "A key is needed: `hierchat keys add NAME` makes one. Send it as `Authorization: Bearer KEY`, which is what "
    "clients do with their API key."
)
WRONG_KEY = "This key opens nothing. `hierchat keys list` shows the names of those that do."


@dataclass(frozen=True, slots=True)
class Caller:
    """A program that was let in: with a key, or from this machine where none is asked for."""

    key: Key | None = None

    @property
    def keeps(self) -> bool:
        """Whether what it asks and gets is kept, to draft its later replies."""
        return self.key is not None and self.key.user_id is not None

    @property
    def user_id(self) -> int:
        """Whose slots and texts it uses. Where nothing is kept, a number that no user has, for each key another one."""
        if self.key is None:
            return NOBODY
        return -self.key.id if self.key.user_id is None else self.key.user_id


def admit(scope: Scope, access: Access, store: Store, is_local: Callable[[Scope], bool]) -> Caller:
    """The caller. `is_local`: whether a request was made on this machine. Raises Refused."""
    headers = Headers(scope=scope)
    scheme, _, given = headers.get("authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    given = given or headers.get("x-api-key", "").strip()
    key = store.find_key(given) if given else None
    if key is not None:
        return Caller(key)
    here = is_local(scope) and not any(name in headers for name in _HANDED_ON)
    if here and (access == "open" or scope["path"] == "/health"):
        return Caller()  # many clients insist on some key: on this machine a wrong one is none
    why, code = (WRONG_KEY, "invalid_api_key") if given else (NO_KEY, "missing_api_key")
    raise Refused(401, why, code=code, headers={"WWW-Authenticate": "Bearer"})
