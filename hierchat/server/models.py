"""Which models a program may name, and having the one that it names loaded."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from hierchat.server.errors import Refused

if TYPE_CHECKING:
    from hierchat.chat.service import ChatService

_POLL_SECONDS = 0.1
_STARTED = int(time.time())


def listed(service: ChatService) -> list[dict[str, Any]]:
    """The models that are on this machine, in OpenAI's form."""
    hosted = service.host.hosted
    return [
        {
            "id": name,
            "object": "model",
            "created": _STARTED,
            "owned_by": "hierchat",
            "loaded": hosted is not None and hosted.name == name,
        }
        for name in service.models.names
    ]


def require_here(service: ChatService, name: str) -> None:
    """Raises Refused where no model on this machine is called so. No name means the one that is loaded."""
    if name and name not in (names := service.models.names):
        there = f"There are: {', '.join(names)}." if names else "None is there yet."
        raise Refused(
            404, f"No model on this machine is called {name!r}. {there}", "model", "model_not_found"
        )


def load(service: ChatService, name: str, stop: threading.Event) -> float:
    """Have the named model loaded in place of the present one, and wait for it; the seconds that this took.

    Replies in progress end first. Raises Refused where it cannot be loaded, or where another one took its place.
    """
    host, began = service.host, time.monotonic()
    if not name or (host.hosted is not None and host.hosted.name == name):
        return 0.0
    if host.status.name != name or host.status.phase in ("none", "ready", "failed"):
        host.start(name)
    while not stop.is_set():
        status, hosted = host.status, host.hosted
        if hosted is not None and hosted.name == name:
            return time.monotonic() - began
        if status.phase in ("none", "failed") or (status.phase == "ready" and status.name != name):
            raise Refused(503, status.message or f"{name} was not loaded.", "model", "model_not_loaded")
        stop.wait(_POLL_SECONDS)
    return 0.0
