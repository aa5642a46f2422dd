"""Check keys of other programs and their limits, and write errors in OpenAI's form."""

import math
import os
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from hierchat import logs
from hierchat.chat.completions import NoModel
from hierchat.config import cache_dir, config_dir, data_dir
from hierchat.engine.generation import PromptTooLong
from hierchat.engine.sampling.grammar import GrammarError
from hierchat.engine.scheduler import QueueFull
from hierchat.runtime.prompt import MessageTooLong
from hierchat.runtime.template import TemplateRefused
from hierchat.store import Access, Key, StoreError
from hierchat.store.users import Keys

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_FOLDERS = re.compile(r"""(?<![^\s'"(])(?:[A-Za-z]:[\\/]|/)(?:[^\s/\\]+[\\/])*""")


def _without_folders(said: str) -> str:
    """Return a sentence with each path cut to its last part: folders are for the owner."""
    for folder in (cache_dir(), data_dir(), config_dir(), Path.home()):
        said = said.replace(f"{folder}{os.sep}", "")
    return _FOLDERS.sub("", said)


class ApiError(Exception):
    """Raised for a request that gets an error. `param`: the field to blame; `code`: OpenAI's name of the case."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_without_folders(message) if status >= 500 else message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        return KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case ValidationError():
            return _field(error)
        case QueueFull():
            return ApiError(429, str(error), code="rate_limit_exceeded", headers={"Retry-After": "5"})
        case NoModel():
            return ApiError(503, str(error), code="model_not_loaded", headers={"Retry-After": "10"})
        case MessageTooLong() | PromptTooLong():
            return ApiError(400, str(error), "messages", "context_length_exceeded")
        case StoreError():
            # It says where the database lies, which is for the owner's eyes.
            message = "hierchat's database cannot be used just now. Its owner sees the reason on the page."
            return ApiError(503, message, headers={"Retry-After": "10"})
        case TemplateRefused():
            return ApiError(400, str(error), "messages")
        case GrammarError():
            message = f"The form that the reply is to have cannot be used: {error}"
            return ApiError(400, message, "response_format")
        case HTTPException():
            message = "There is no such address here." if error.status_code == 404 else error.detail
            return ApiError(error.status_code, message, headers=error.headers)
    return ApiError(500, logs.error_message(error))


def _field(error: ValidationError) -> ApiError:
    first = max(error.errors(), key=lambda one: len(one["loc"]))  # of a union, the branch that fits best
    # A union names the branch that it tried, too: only what stands in the request is of use.
    parts = (str(part) for part in first["loc"] if part != "str")
    place = ".".join(part for part in parts if part.isdecimal() or (part.isidentifier() and part.islower()))
    if first["type"] == "extra_forbidden":
        message = f"{place} is not supported here. Leave it out; docs/serving.md lists what is."
    elif first["type"] == "missing":
        message = f"{place} is missing."
    else:
        said = first["msg"].removeprefix("Value error, ").removesuffix(".")
        message = f"{place}: {said}." if place else f"{said}."
    code = "unsupported_parameter" if first["type"] == "extra_forbidden" else None
    return ApiError(400, message, place or None, code)


# Who may ask the endpoint. Host and Origin have been checked before (access/hosts.py): no page of
# another site comes so far, and nothing tells a browser that it may.
CALLER = "hierchat.caller"
"""Where the caller stands in a request's scope."""
NOBODY = 0
NO_KEY = (
    "A key is needed: `hierchat keys add NAME` makes one. Send it as `Authorization: Bearer KEY`, which is what "
    "clients do with their API key."
)
WRONG_KEY = "This key opens nothing. `hierchat keys list` shows the names of those that do."


@dataclass(frozen=True, slots=True)
class Caller:
    """Program that was admitted: with a key, or from this machine where none is needed."""

    key: Key | None = None

    @property
    def keeps(self) -> bool:
        """Return whether the caller's requests and replies are kept, to draft later replies."""
        return self.key is not None and self.key.user_id is not None

    @property
    def user_id(self) -> int:
        """Return the user whose slots and texts the caller uses; if nothing is kept, a number that no user has."""
        if self.key is None:
            return NOBODY
        return -self.key.id if self.key.user_id is None else self.key.user_id


def authenticate(scope: Scope, access: Access, keys: Keys, is_local: Callable[[Scope], bool]) -> Caller:
    """Return the caller of a request by its key. `is_local`: whether it was made on this machine. Raises ApiError."""
    headers = Headers(scope=scope)
    scheme, _, given = headers.get("authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    given = given or headers.get("x-api-key", "").strip()
    key = keys.find(given) if given else None
    if key is not None:
        return Caller(key)
    if is_local(scope) and (access == "open" or scope["path"] == "/health"):
        return Caller()  # many clients insist on some key: on this machine a wrong one is none
    why, code = (WRONG_KEY, "invalid_api_key") if given else (NO_KEY, "missing_api_key")
    raise ApiError(401, why, code=code, headers={"WWW-Authenticate": "Bearer"})


# What a key may use: replies at once, requests a minute, tokens a day.
MINUTE = 60.0


class KeyLimits:
    """Counts the requests and replies of each key in this process. To be used in the event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._writing: Counter[int] = Counter()
        self._times: defaultdict[int, deque[float]] = defaultdict(deque)

    def enter(self, key: Key) -> Callable[[], None]:
        """Count a reply as begun; calling the result ends it. Raises ApiError if it exceeds a limit of the key."""
        if key.tokens_per_day is not None and key.today >= key.tokens_per_day:
            used_up = "They are used up until midnight."
            raise _refused(key, f"{key.tokens_per_day:,} tokens a day", used_up, 3600)
        if key.at_once is not None and self._writing[key.id] >= key.at_once:
            raise _refused(key, f"{key.at_once} replies at once", "Wait for one to end.", 5)
        if (most := key.per_minute) is not None:
            times, now = self._times[key.id], self._clock()
            while times and times[0] <= now - MINUTE:
                times.popleft()
            if len(times) >= most:
                wait = math.ceil(times[len(times) - most] + MINUTE - now) if most else 3600
                raise _refused(key, f"{most} requests a minute", f"Ask again in {wait} seconds.", wait)
            times.append(now)
        self._writing[key.id] += 1

        def leave() -> None:
            self._writing[key.id] -= 1

        return leave


def _refused(key: Key, limit: str, advice: str, seconds: int) -> ApiError:
    message = f"The key {key.name!r} may have {limit}. {advice}"
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
