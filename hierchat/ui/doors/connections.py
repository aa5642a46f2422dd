"""How many connections one client may hold, and for how long without doing anything with them.

uvicorn limits neither. A connection that sends nothing, or does not read its answer, costs a descriptor and what waits
to be sent: where they run out, nobody else is let in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from hierchat.ui.doors.origins import is_loopback
from hierchat.ui.doors.throttle import network

if TYPE_CHECKING:
    from uvicorn import Config

HERE = 256
"""Connections from this machine: all of its browsers and programs, and of whoever comes by a tunnel or a proxy. A
browser opens six to one server, however many tabs it has."""
ELSEWHERE = 64
"""From one other address."""
ALL_ELSEWHERE = 512
"""From all other addresses together: a process has 1,024 descriptors by default."""
PATIENCE_SECONDS = 30.0
"""How long a connection may stand still on the client's side: without a whole request, or without reading."""
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
    b"Too many connections. Close some, then try again.\n"
)


def bound(config: Config) -> None:
    """Have the running server of this configuration hold to these limits from now on."""
    held: Counter[str] = Counter()
    kind = cast(Any, config.http_protocol_class)
    config.http_protocol_class = type("Bounded", (_Bounded, kind), {"held": held})
    config.ws_protocol_class = None  # nothing here speaks it, and it would take connections out of the count


class _Bounded(asyncio.Protocol):
    """In front of uvicorn's protocol for one connection."""

    held: Counter[str]
    """Connections by address; under "" those from elsewhere together."""
    _counted: tuple[str, ...] = ()
    _watching: asyncio.TimerHandle | None = None
    _before: tuple[object, ...] | None = None
    _received = 0
    _resumed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host = (transport.get_extra_info("peername") or ("localhost",))[0]
        here = is_loopback(str(host))
        names = ("here",) if here else (network(str(host)), "")
        limits = (HERE,) if here else (ELSEWHERE, ALL_ELSEWHERE)
        if any(self.held[name] >= most for name, most in zip(names, limits, strict=True)):
            self._transport.write(_REFUSAL)
            self._transport.close()
            return
        self._counted = names
        self.held.update(names)
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watching:
            self._watching.cancel()
        if self._counted:
            for name in self._counted:
                self.held[name] -= 1
                if not self.held[name]:
                    del self.held[name]
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        self._resumed += 1
        super().resume_writing()

    def _watch(self) -> None:
        self._watching = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._look)

    def _look(self) -> None:
        """End the connection where the client owes something and did nothing since the last look."""
        now = self._owed()
        if now is not None and now == self._before:
            self._transport.abort()
            return
        self._before = now
        self._watch()

    def _owed(self) -> tuple[object, ...] | None:
        """What changes as soon as the client does what it has to; None where it has nothing to do."""
        of_uvicorn = cast(Any, self)
        cycle = of_uvicorn.cycle
        if self._transport.get_write_buffer_size():  # the system's own buffer is full, too
            return ("read", self._resumed)
        if cycle is None or cycle.response_complete:
            return ("ask", cycle)
        if cycle.more_body and not of_uvicorn.flow.read_paused:
            return ("send", self._received)
        return None
