"""Record each attempt of this process to reach another machine, by an audit hook. Connections of native code and of
other programs are not seen; `note` records known ones."""

import sys
import threading
import time
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from hierchat.config import APP

_CONNECTS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LOOKS_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
_NOWHERE = "192.0.2."
"""Addresses for documentation, by which a program asks the system for its own address."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Attempts to reach one address. `asker`: the module of hierchat, or the library if none was involved."""

    address: str
    asker: str
    times: int
    last: float
    """Unix time of the latest one."""


_made: dict[tuple[str, str], Attempt] = {}
_lock = threading.RLock()
_recording = False


def record() -> None:
    """Record attempts from now on. Python keeps an audit hook until the process ends."""
    global _recording
    if not _recording:
        _recording = True
        sys.addaudithook(_hook)


def attempts() -> list[Attempt]:
    """Return the attempts so far, the latest first."""
    with _lock:
        return sorted(_made.values(), key=lambda one: one.last, reverse=True)


def note(address: str, asker: str = "") -> None:
    """Count an attempt. `asker`: by default the module that called."""
    with _lock:
        key = address, asker or _asker()
        before = _made.get(key)
        _made[key] = Attempt(*key, before.times + 1 if before else 1, time.time())


def _hook(event: str, values: tuple[Any, ...]) -> None:
    if not event.startswith("socket."):
        return
    port = None
    if event in _CONNECTS:
        host, *ports = values[1] if isinstance(values[1], tuple) and values[1] else (None,)
        port = ports[0] if ports else None
    elif event in _LOOKS_UP:
        host = values[0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if isinstance(host, str) and not _is_here(host, connects=event in _CONNECTS):
        note(f"{host}, port {port}" if port else host)


def _is_here(host: str, *, connects: bool) -> bool:
    """Return whether no packet leaves this machine: to itself, or to "look up" an address that is a number."""
    name = host.lower().rstrip(".")
    if name in ("", "localhost") or name.endswith(".localhost") or name.startswith(_NOWHERE):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return not connects or address.is_loopback or address.is_unspecified


def _asker() -> str:
    frame, library = sys._getframe(1), ""
    while frame := frame.f_back:  # type: ignore[assignment]
        name = str(frame.f_globals.get("__name__"))
        package = name.partition(".")[0]
        if package == APP and name != __name__:
            return f"{name} ({library})" if library else name
        if package != APP and package not in sys.stdlib_module_names:
            library = package
    return library or "Python"
