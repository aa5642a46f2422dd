"""Attacks over real sockets on a server with a login: whatever is sent, or not read, others are answered meanwhile."""

import asyncio
import os
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hierchat.access import limits
from tests.access.conftest import ACCOUNT, PAGE, RIGHT, log_in
from tests.access.test_limits import connected, got
from tests.isolation.visitor import Visitor
from tests.testing.raw import ask, netloc

FLOOD = int(os.environ.get("HIERCHAT_FLOOD", "2000"))


@pytest.fixture
def handles() -> Iterator[None]:
    """Both ends of each connection are in this process."""
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


def test_slow_clients_and_streams_that_nobody_reads_keep_nobody_waiting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 1.0)
    visitor = Visitor(address, *ACCOUNT)
    head = f"Host: {netloc(address)}\r\nCookie: {visitor.headers['Cookie']}\r\n"
    kinds = [
        "GET / HTTP/1.1\r\n",
        f"POST /login HTTP/1.1\r\n{head}Content-Length: 4000\r\n\r\nusername=",
        f"GET /gradio_api/page/{visitor.hash} HTTP/1.1\r\n{head}\r\n",
        f"GET /config HTTP/1.1\r\n{head}\r\n" * 8,
    ]
    with ExitStack() as held:
        for kind in kinds:
            for _ in range(20):
                wire = held.enter_context(connected(address))
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                wire.sendall(kind.encode())
        for _ in range(5):
            assert b" 200 " in got(address, "/login")
        assert ask(address, "GET", "/gradio_api/app_id", log_in(address)).status == 200


LONG = "x" * 200_000
RAW = [
    f"GET /{LONG} HTTP/1.1\r\nHost: {{}}\r\n\r\n",
    f"GET / HTTP/1.1\r\nHost: {{}}\r\nX-Long: {LONG}\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: {}\r\n" + "".join(f"X-{n}: y\r\n" for n in range(20_000)) + "\r\n",
    f"GET / HTTP/1.1\r\nHost: {{}}\r\nCookie: {'a=b; ' * 30_000}\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: {}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /config",
    "GET / HTTP/1.1\r\nHost: {}\r\nContent-Length: -1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: {}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "POST /login HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "POST /login HTTP/1.1\r\nHost: {}\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "GET http://evil.example/ HTTP/1.1\r\nHost: {}\r\n\r\n",
    "CONNECT evil.example:80 HTTP/1.1\r\nHost: {}\r\n\r\n",
    "GET / HTTP/9.9\r\nHost: {}\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\0" * 9_000,
]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_what_is_no_request_is_refused_or_cut_off(address: str, raw: str) -> None:
    said = b""
    with connected(address) as wire:
        try:
            wire.sendall(raw.format(netloc(address)).encode("latin-1"))
            wire.shutdown(socket.SHUT_WR)
            while piece := wire.recv(1 << 16):
                said += piece
        except OSError:
            pass
    statuses = [line.split()[1] for line in said.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert set(statuses) <= {b"400", b"401", b"403", b"404", b"411", b"413", b"431"}, said[:300]
    assert b"Traceback" not in said
    assert b" 200 " in got(address, "/login")


def test_a_session_that_somebody_else_chose_is_none_and_each_login_makes_its_own(address: str) -> None:
    name = log_in(address)["Cookie"].partition("=")[0]
    chosen = {"Cookie": f"{name}=chosen-by-somebody-else"}
    answer = ask(address, "POST", "/login", chosen | PAGE, form=RIGHT)
    assert answer.status == 303
    assert "chosen" not in answer.headers["Set-Cookie"]
    assert ask(address, "GET", "/config", chosen).status == 401
    mine = {"Cookie": answer.cookie}
    again = ask(address, "POST", "/login", mine, form=RIGHT)
    assert again.cookie != answer.cookie
    for query in (f"?{answer.cookie}", f"?token={answer.cookie.partition('=')[2]}"):
        assert ask(address, "GET", f"/config{query}").status == 401


STEPS = ["../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "....//", "%252e%252e%252f", "..;/"]
STEPS += ["%c0%ae%c0%ae/", "/", "%00/"]
ROUTES = [
    "/", "/static/", "/assets/", "/svelte/", "/transfer/out/", "/models/", "/pwa_icon/", "/monitoring/", "/gradio_api/",
    "/gradio_api/file=", "/gradio_api/file/", "/v1/models/", "/login/",
]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_no_path_leads_to_a_file(address: str, route: str) -> None:
    cookie = log_in(address)
    for step in STEPS:
        for file in ("etc/passwd", "hierchat.db", "home/you/.local/share/hierchat/hierchat.db"):
            answer = ask(address, "GET", f"{route}{step * 9}{file}", cookie, read=300)
            assert "root:" not in answer.text
            assert "SQLite" not in answer.text
            assert answer.status in (400, 401, 403, 404, 405, 422), (route, step, answer.status, answer.text)
