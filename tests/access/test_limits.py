"""What one client may take: bytes of a request on every route, JSON that can be worked with, requests in work,
connections, and time in which it does nothing with them."""

import asyncio
import itertools
import os
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hierchat.access import limits
from hierchat.access.limits import AT_ONCE, LIMITS, ConcurrencyMiddleware, most_bytes
from hierchat.access.login import USER, network
from tests.access.conftest import ACCOUNT, log_in
from tests.access.test_login import paths_of
from tests.isolation.visitor import Visitor
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService
from tests.testing.raw import ask, netloc

SMALL = 2_000
CALL = "/gradio_api/run/x"


def connected(address: str) -> socket.socket:
    host, port = netloc(address).split(":")
    return socket.create_connection((host, int(port)), timeout=driving.PATIENCE_MS / 1e3)


def posted(address: str, path: str, headers: dict[str, str], pieces: Iterator[bytes]) -> bytes:
    """The status line that answers a body in chunks, which says no length before; it is read before the body ends."""
    lines = {"Host": netloc(address), "Transfer-Encoding": "chunked"} | headers
    with connected(address) as wire:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        wire.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode())
        for piece in pieces:
            wire.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        return wire.makefile("rb").readline()


def test_every_route_has_a_limit_while_the_body_comes(
    fresh: FakeService, apps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIMITS", tuple((path, SMALL) for path, _ in LIMITS))
    for account in (ACCOUNT, None):
        with driving.serving(fresh, account) as address:
            headers = {"Cookie": log_in(address)["Cookie"]} if account else {}
            paths = {path or "/" for path in paths_of(apps[-1].server_app.routes)}
            assert {CALL, "/gradio_api/upload", "/gradio_api/component_server"} <= paths
            own = {"/login", "/password", "/logout"} if account else set()  # forms of 4 KiB
            for path in sorted(paths - own):
                # The client's last piece says that the body ends, but none is sent: it is refused before that.
                refused = posted(address, path, headers, itertools.repeat(b"x" * 500, 5))
                # What nobody reads is answered at once.
                assert refused.split()[1] in (b"413", b"404", b"405", b"422", b"400"), (path, refused)
                read = path in ("/transfer/in", CALL)
                assert b" 413 " in refused or not read, (path, refused)
                told = {**headers, "Content-Length": str(SMALL + 1)}
                assert ask(address, "POST", path, told).status == 413, path


def test_a_file_that_the_page_attaches_is_within_the_limit() -> None:
    from hierchat.texts.attachments import MOST_BYTES

    assert most_bytes(CALL) > MOST_BYTES * 4 / 3 + (4 << 20)
    assert most_bytes("/v1\n") == most_bytes("/anything") == 1 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"data": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"data": [' + b"0," * 500_000 + b"0]}",
        b'{"data": [NaN], "session_hash": "x"}',
        b'{"data": [1e999], "session_hash": "x"}',
        b'{"data": [' + b"9" * 5000 + b'], "session_hash": "x"}',
        b"\xff\xfe",
        b'"',
        b"{",
    ],
    ids=lambda body: str(body[:16]),
)
def test_json_that_no_page_sends_is_refused(address: str, body: bytes) -> None:
    headers = log_in(address) | {"Content-Type": "application/json"}
    for path in (CALL, "/gradio_api/run/predict", "/gradio_api/cancel", "/gradio_api/reset"):
        assert b" 400 " in posted(address, path, headers, iter([body, b""])), path


def test_requests_of_one_client_wait_for_each_other_and_others_for_none() -> None:
    """Sixty at once: four are worked on, and somebody else's first one comes in between."""
    inside: list[str] = []
    most = 0

    async def many() -> None:
        go = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal most
            inside.append(scope[USER])
            most = max(most, inside.count("ann"))
            await (go.wait() if scope[USER] == "ann" else asyncio.sleep(0))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            inside.remove(scope[USER])

        async def nothing(*message: Any) -> None:
            pass

        turns = ConcurrencyMiddleware(app)

        def asked(user: str, path: str = "/config") -> asyncio.Task[None]:
            scope = {"type": "http", "path": path, "client": ("10.0.0.1", 5), USER: user}
            return asyncio.ensure_future(turns(scope, nothing, nothing))

        waiting = [asked("ann") for _ in range(60)]
        await asyncio.sleep(0)
        assert inside == ["ann"] * AT_ONCE
        await asked("ben")
        stream = asked("ann", "/gradio_api/page/x")  # it is open as long as the page: it takes no turn
        await asyncio.sleep(0)
        assert len(inside) == AT_ONCE + 1
        go.set()
        await asyncio.gather(stream, *waiting)
        assert len(turns._turns) == 0

    asyncio.run(many())
    assert most == AT_ONCE + 1
    assert inside == []


def test_one_address_has_so_many_connections(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HERE", 5)
    held = [connected(address) for _ in range(5)]
    try:
        with connected(address) as refused:
            assert b" 503 " in refused.makefile("rb").readline()
        held.pop().close()
        answered = b""
        while b" 200 " not in answered:  # the server has seen it close
            answered = got(address, "/login")
    finally:
        for wire in held:
            wire.close()


def got(address: str, path: str) -> bytes:
    with connected(address) as wire:
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: {netloc(address)}\r\n\r\n".encode())
        return wire.makefile("rb").readline()


def say_on(wire: socket.socket) -> None:
    """Until the other side ends it."""
    while True:
        wire.sendall(b"x" * 1000)


def test_a_connection_that_stands_still_is_ended(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 0.2)
    head = f"Host: {netloc(address)}\r\nCookie: {log_in(address)['Cookie']}\r\n"
    half_a_body = f"POST {CALL} HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n{{"
    beginnings = ["", "GET / HTTP/1.1\r\nHost:", half_a_body]
    for beginning in beginnings:
        with connected(address) as wire:
            wire.sendall(beginning.encode())
            assert wire.recv(100) == b""  # by the server: else this would wait for ever
    with connected(address) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.sendall(f"GET /config HTTP/1.1\r\n{head}\r\n".encode() * 20)  # and reads none of it
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            say_on(wire)


def test_a_stream_that_is_read_stays_however_long_it_says_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    look = limits._LimitedConnection._look

    def watched(self: Any) -> None:
        looks.append(self._owed())
        look(self)

    visitor = Visitor(address, *ACCOUNT)
    visitor.open()
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(limits._LimitedConnection, "_look", watched)
    with connected(address) as wire:
        head = f"Host: {netloc(address)}\r\nCookie: {visitor.headers['Cookie']}\r\n"
        wire.sendall(f"GET /gradio_api/page/{visitor.hash} HTTP/1.1\r\n{head}\r\n".encode())
        answer = wire.makefile("rb")
        assert b" 200 " in answer.readline()
        while looks.count(None) < 10:
            pass
        wire.settimeout(0.1)
        with pytest.raises(TimeoutError):  # it is open, and silent
            answer.read()


def test_connections_of_one_network_of_ipv6_count_together() -> None:
    assert network("2001:db8:1:2:3:4:5:6") == network("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    for alone in ("192.168.1.5", "::ffff:192.168.1.5", ""):
        assert network(alone) == alone


FLOOD = int(os.environ.get("HIERCHAT_FLOOD", "2000"))


@pytest.fixture
def handles() -> Iterator[None]:
    """Both ends of each connection are in this process."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 3 * FLOOD)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_of_connections_are_turned_away_and_the_page_answers(address: str, handles: None) -> None:
    host, port = netloc(address).split(":")

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:  # those that are let in say nothing until all are there
            return await asyncio.wait_for(reader.read(12), 5)
        except (TimeoutError, ConnectionError):
            return b""
        finally:
            writer.close()

    async def flood() -> Counter[bytes]:
        return Counter(await asyncio.gather(*(one() for _ in range(FLOOD))))

    said = asyncio.run(flood())
    assert said[b"HTTP/1.1 503"] > 0
    assert set(said) <= {b"HTTP/1.1 503", b""}
    answered = b""
    while b" 200 " not in answered:
        answered = got(address, "/login")
