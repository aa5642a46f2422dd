"""Each attempt to reach another machine is recorded, with the module that asked; what stays here is not."""

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from hierchat import connections
from hierchat.connections import attempts


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_made", {})
    connections.record()


def asked_by(module: str, ask: Callable[[], Any]) -> None:
    """Call from a function of that module."""
    inside = ModuleType(module).__dict__
    exec("def call(ask): ask()", inside)
    inside["call"](ask)


def test_each_attempt_is_counted_with_who_asked() -> None:
    def connect() -> None:  # an address for examples, and no answer is waited for
        with suppress(OSError), socket.socket() as one:
            one.settimeout(0)
            one.connect(("203.0.113.7", 443))

    for _ in range(2):
        asked_by("hierchat.models.fetch.hub", connect)
    with suppress(OSError):
        socket.getaddrinfo("nowhere.invalid", 80)
    sys.audit("socket.sendto", None, ("2001:db8::1", 53, 0, 0))
    # Of a library that hierchat called: both are named
    asked_by("hierchat.page.page_app", lambda: asked_by("somebody.analytics", connect))
    found = {(one.address, one.asker): one.times for one in attempts()}
    me = __name__.partition(".")[0]
    assert found[("203.0.113.7, port 443", f"hierchat.models.fetch.hub ({me})")] == 2
    assert {address for address, _ in found} == {
        "203.0.113.7, port 443",
        "nowhere.invalid",
        "2001:db8::1, port 53",
    }
    assert sum(found.values()) == 5
    assert attempts()[0].asker.startswith("hierchat.page.page_app (")


def test_what_stays_on_this_machine_is_no_attempt(tmp_path: Any) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1])).close()
    with suppress(OSError), socket.socket(socket.AF_UNIX) as one:
        one.connect(str(tmp_path / "none"))
    for host in ("::1", "::ffff:127.0.0.1", "0.0.0.0", "192.0.2.1"):
        sys.audit("socket.connect", None, (host, 80))
    socket.getaddrinfo("203.0.113.7", 80)  # a number needs nobody to look it up
    sys.audit("socket.sendmsg", None, None)
    assert attempts() == []
