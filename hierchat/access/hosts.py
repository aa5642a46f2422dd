"""Check the Host and the Origin of each request: addresses of this server, and web pages that may ask it.

A browser sends any page's requests to any server that it can reach, this one too, and a name under a stranger's
control can be made to lead to this machine (DNS rebinding). So a request must be addressed to a name that is ours,
and must come from a page that was served under the same name."""

import ipaddress
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

Authority = tuple[str, int | None]
"""Host name or address, in one spelling, and port."""

WRONG_ADDRESS = (
    "hierchat does not answer to this address. Open the address that it printed when it started. To use another "
    "address of this machine, start hierchat with --host and that address; behind a proxy, with --public-url.\n"
)
WRONG_PAGE = (
    "A page of another site asked hierchat for something, and was refused. Open the address that hierchat printed "
    "when it started.\n"
)
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::([0-9]{1,5}))?")
_PORTS = {"http": 80, "https": 443}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HANDED_ON = {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"}


def parse_authority(text: str) -> Authority | None:
    """Parse a Host header into name and port; None if no browser would send it."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    six, name, port = match.groups()
    try:
        name = str(ipaddress.IPv6Address(six)) if six else name.removesuffix(".")
    except ValueError:
        return None
    return name, int(port) if port else None


def is_loopback(host: str) -> bool:
    """Tell whether a server that listens on `host` can be reached from this machine only."""
    address = _address(host)
    return address.is_loopback if address else host == "localhost"


def is_handed_on(scope: Scope) -> bool:
    """Tell whether the request's headers say that a proxy forwarded it."""
    return any(name.lower() in _HANDED_ON for name, _ in scope["headers"])


class AllowedHosts:
    """Knows the host names under which this server may be asked. `public`: the public link or proxy, once known."""

    def __init__(self, host: str, public: Callable[[], str | None] = lambda: None) -> None:
        self.public = public
        address = _address(host)
        self._everywhere = address is not None and address.is_unspecified
        self._names = {*LOOPBACK, str(address) if address else host.lower().removesuffix(".")}
        if self._everywhere:
            name = socket.gethostname().lower()
            short = name.partition(".")[0]
            self._names |= {name, short, f"{short}.local", socket.getfqdn().lower()}
        self._names.discard("")

    def refusal(self, scope: Scope) -> str | None:
        """Return the sentence that refuses a request for its Host or Origin; None if it may come in."""
        served = self.served(scope)
        if served is None or not self._is_ours(served[0]):
            return WRONG_ADDRESS
        headers = Headers(scope=scope)
        origins = headers.getlist("origin")
        if len(origins) > 1 or (origins and not self._is_own_page(origins[0], served)):
            return WRONG_PAGE
        # For requests that carry no Origin, such as those for images. Another port of this machine is "same-site".
        if not set(headers.getlist("sec-fetch-site")) <= {"same-origin", "none"}:
            navigates = headers.getlist("sec-fetch-mode") == ["navigate"]
            return None if navigates and scope["method"] in ("GET", "HEAD") else WRONG_PAGE
        return None

    def served(self, scope: Scope) -> Authority | None:
        """Return host and port to which the request was addressed; None if that is not clear."""
        hosts = Headers(scope=scope).getlist("host")
        return parse_authority(hosts[0]) if len(hosts) == 1 else None

    def is_public(self, scope: Scope) -> bool:
        """Tell whether the request was made to the public address."""
        served, public = self.served(scope), self._public()
        return served is not None and public is not None and served[0] == public[0]

    def is_local(self, scope: Scope) -> bool:
        """Tell whether the request was made on this machine, and no proxy forwarded it."""
        served, client = self.served(scope), scope.get("client")
        here = served and client and served[0] in LOOPBACK and is_loopback(client[0])
        return bool(here and not is_handed_on(scope))

    def _is_ours(self, name: str) -> bool:
        public = self._public()
        if name in self._names or (public is not None and name == public[0]):
            return True
        # A bare address is no name that someone could make lead here: the browser went where the user said.
        return self._everywhere and _address(name) is not None

    def _is_own_page(self, origin: str, served: Authority) -> bool:
        scheme, mark, rest = origin.partition("://")
        page = parse_authority(rest)
        port = _PORTS.get(scheme.lower())
        if not mark or page is None or port is None:
            return False
        ours = {(served[0], served[1] or port)}
        if (public := self._public()) is not None:  # should the relay put its own Host in place of it
            ours.add((public[0], public[1] or port))
        return (page[0], page[1] or port) in ours

    def _public(self) -> Authority | None:
        link = self.public()
        return parse_authority(urlsplit(link).netloc) if link else None


class SameOriginMiddleware:
    """Answers 403 to requests for another host or from another site, event streams, uploads and sockets included."""

    def __init__(self, app: ASGIApp, origins: AllowedHosts) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = None if scope["type"] == "lifespan" else self._origins.refusal(scope)
        if why is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(why, 403, {"Cache-Control": "no-store"})(scope, receive, send)
        else:
            await WebSocketClose(1008)(scope, receive, send)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]"))
    return None
