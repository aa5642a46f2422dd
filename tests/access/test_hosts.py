"""Only pages of our own may ask the server for anything, and only under its own names (no DNS rebinding)."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from hierchat.access import hosts
from hierchat.access.hosts import WRONG_ADDRESS, WRONG_PAGE, AllowedHosts, SameOriginMiddleware
from hierchat.page.page_app import build_app, serve
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService, make
from tests.testing.raw import ask, netloc

ANN = ("ann", "the password of ann")
CALL = {"data": [""], "fn_index": 0, "session_hash": "stranger"}
ROUTES = [
    ("POST", "/gradio_api/run/predict", CALL),
    ("POST", "/gradio_api/queue/join", CALL),
    ("POST", "/gradio_api/call/load", CALL),
    ("POST", "/gradio_api/upload", {}),
    ("POST", "/transfer/in", CALL),
    ("GET", "/gradio_api/page/stranger", None),
    ("GET", "/gradio_api/info", None),
    ("GET", "/config", None),
    ("GET", "/", None),
    ("OPTIONS", "/gradio_api/run/predict", None),
]


def scope(host: str | None, kind: str = "http", method: str = "POST", **headers: str) -> dict[str, Any]:
    lines = [] if host is None else [(b"host", host.encode("latin-1"))]
    lines += [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": kind, "method": method, "path": "/", "headers": lines, "client": ("127.0.0.1", 5)}


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_a_rebound_name_and_another_page_reach_nothing(
    open_address: str, method: str, path: str, body: object
) -> None:
    rebound = f"evil.example:{netloc(open_address).split(':')[1]}"
    asks = {"Access-Control-Request-Method": "POST"}
    for headers, said in (
        ({"Host": rebound}, WRONG_ADDRESS),
        ({"Host": rebound, "Origin": f"http://{rebound}", **asks}, WRONG_ADDRESS),
        *(
            ({"Origin": one, **asks}, WRONG_PAGE)
            for one in ("http://localhost:3000", "https://evil.example", "null")
        ),
    ):
        answer = ask(open_address, method, path, headers, json_body=body)
        assert (answer.status, answer.text) == (403, said)
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert answer.headers["Access-Control-Allow-Origin"] is None
        assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]


def test_the_page_itself_and_programs_without_an_origin_are_served(open_address: str) -> None:
    port = netloc(open_address).split(":")[1]
    for name in ("127.0.0.1", "localhost", "LOCALHOST", "localhost."):
        for origin in ({}, {"Origin": f"http://{name}:{port}", "Sec-Fetch-Site": "same-origin"}):
            headers = {"Host": f"{name}:{port}"} | origin
            answer = ask(open_address, "POST", "/gradio_api/run/predict", headers, CALL)
            assert answer.status == 200, answer.text


def test_a_link_to_the_page_may_stand_anywhere_but_nothing_else_is_fetched(open_address: str) -> None:
    for site in ("cross-site", "same-site"):
        for method, path, mode, status in (
            ("GET", "/", "navigate", 200),
            ("GET", "/gradio_api/page/x", "no-cors", 403),
            ("POST", "/gradio_api/run/predict", "navigate", 403),
        ):
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
            assert ask(open_address, method, path, headers).status == status


@pytest.mark.parametrize(
    "host",
    [
        None, "", " ", "evil.example", "localhost.evil.example", "localhost@evil.example", "evil.example@localhost",
        "user:pass@localhost:7860", "localhost:7860@evil.example", "localhost..", "localhost:", "localhost:port",
        "localhost:123456", "localhost/x", "http://localhost", "localhost,evil.example", "localhost evil.example",
        "127.0.0.1.evil.example", "0.0.0.0:7860", "[::]", "[::2]", "[::1", "::1", "[::1]x", "[127.0.0.1]", "2130706433",
        "127.1", "0x7f.0.0.1", "127.0.0.01", "192.168.0.7", "l\xf6calhost", "localhost\x00",
    ],
)  # fmt: skip
def test_hosts_that_are_not_ours(host: str | None) -> None:
    assert AllowedHosts("127.0.0.1").refusal(scope(host)) == WRONG_ADDRESS
    for ours in (
        "localhost",
        "LocalHost:1",
        "127.0.0.1:65535",
        "[::1]:7860",
        "[0:0:0:0:0:0:0:1]",
        "localhost.:7860",
    ):
        assert AllowedHosts("127.0.0.1").refusal(scope(ours)) is None


def test_two_hosts_or_two_origins_are_refused() -> None:
    twice = scope("localhost")
    twice["headers"].append((b"host", b"localhost"))
    assert AllowedHosts("127.0.0.1").refusal(twice) == WRONG_ADDRESS
    twice = scope("localhost", origin="http://localhost")
    twice["headers"].append((b"origin", b"http://localhost"))
    assert AllowedHosts("127.0.0.1").refusal(twice) == WRONG_PAGE


def test_an_origin_is_that_of_the_same_request() -> None:
    ours = AllowedHosts("127.0.0.1")
    for host, origin in (
        ("localhost:7860", "http://localhost:7860"), ("localhost:7860", "HTTP://LOCALHOST:7860"),
        ("[::1]:7860", "http://[::1]:7860"), ("localhost:8080", "http://localhost:8080"),  # a port that was forwarded
        ("localhost", "http://localhost:80"), ("localhost", "https://localhost"),
    ):  # fmt: skip
        assert ours.refusal(scope(host, origin=origin)) is None, origin
    for origin in (
        "http://localhost", "http://localhost:3000", "http://127.0.0.1:7860", "http://localhost:7860.evil.example",
        "http://localhost:7860@evil.example", "http://localhost:7860/", "file://", "null", "", "ftp://localhost:7860",
        "localhost:7860",
    ):  # fmt: skip
        assert ours.refusal(scope("localhost:7860", origin=origin)) == WRONG_PAGE, origin


def test_the_host_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AllowedHosts("192.168.0.7").refusal(scope("192.168.0.7:7860")) is None
    assert AllowedHosts("192.168.0.7").refusal(scope("192.168.0.8:7860")) == WRONG_ADDRESS
    assert AllowedHosts("Attic.lan").refusal(scope("attic.lan:7860", origin="http://attic.lan:7860")) is None
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "Attic")
    monkeypatch.setattr(hosts.socket, "getfqdn", lambda: "attic.fritz.box")
    for everywhere in ("0.0.0.0", "::", "[::]"):
        served = AllowedHosts(everywhere)
        for name in (
            "192.168.0.7",
            "[fe80::1]:7860",
            "attic",
            "ATTIC.local:7860",
            "attic.fritz.box",
            "localhost",
        ):
            assert served.refusal(scope(name)) is None, name
        for name in ("evil.example", "attic.evil.example", "192.168.0.7.evil.example"):
            assert served.refusal(scope(name)) == WRONG_ADDRESS


def test_the_share_address_counts_once_there_is_one() -> None:
    link: list[str | None] = [None]
    served = AllowedHosts("127.0.0.1", lambda: link[0])
    over = scope("abc123.gradio.live", origin="https://abc123.gradio.live")
    assert served.refusal(over) == WRONG_ADDRESS
    link[0] = "https://abc123.gradio.live"
    assert served.refusal(over) is None
    assert served.refusal(scope("localhost:7860", origin="https://abc123.gradio.live")) is None
    assert served.refusal(scope("abc123.gradio.live", origin="https://xyz.gradio.live")) == WRONG_PAGE
    assert served.refusal(scope("xyz.gradio.live")) == WRONG_ADDRESS
    assert served.is_public(over)
    assert not served.is_local(over)
    assert served.is_local(scope("localhost:7860"))


def test_a_socket_is_closed_before_it_opens() -> None:
    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await WebSocket(scope, receive, send).accept()

    client = TestClient(SameOriginMiddleware(inside, AllowedHosts("127.0.0.1")))
    with client.websocket_connect("ws://localhost:7860/", headers={"Origin": "http://localhost:7860"}):
        pass
    refused = {"ws://evil.example/": "http://evil.example", "ws://localhost:7860/": "http://localhost:3000"}
    for there, origin in refused.items():
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(there, headers={"Origin": origin}):
            pass


@pytest.mark.parametrize("host", ["::1", "0.0.0.0"])
def test_it_starts_on_every_kind_of_address(tmp_path: Path, host: str) -> None:
    if ":" in host:
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
    account = None if host == "::1" else ("me", "a long password")
    with driving.serving(make(tmp_path), account, host) as address:
        assert ask(address, "GET", "/").status == (401 if account else 200)
        assert ask(address, "GET", "/", {"Host": "evil.example"}).status == 403


def test_a_public_link_asks_for_the_login_and_takes_no_models(
    fresh: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio's relay hands requests on from this machine, under the name of the link."""
    public = "https://stand-in.example"
    monkeypatch.setattr("gradio.networking.setup_tunnel", lambda **relay: public)
    log_ins = driving.log_ins_of(fresh.store, ANN)
    app = build_app(fresh, log_ins)
    local, told = serve(app, log_ins, share=True)
    assert told == public
    link = {"Host": netloc(public), "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "localhost"}
    try:
        assert ask(local, "GET", "/login", link).status == 200
        assert ask(local, "GET", "/config", link).status == 401
        assert ask(local, "GET", "/login", link | {"Host": "evil.example"}).status == 403
        form = {"username": ANN[0], "password": ANN[1]}
        foreign = link | {"Origin": "https://evil.example"}
        assert ask(local, "POST", "/login", foreign, form=form).status == 403
        answer = ask(local, "POST", "/login", link | {"Origin": public}, form=form)
        assert answer.status == 200
        assert "secure" in (answer.headers["Set-Cookie"] or "").lower()
        mine = link | {"Cookie": answer.cookie}
        assert ask(local, "GET", "/config", mine).status == 200
        page = ask(local, "GET", "/", mine).text
        fetched = re.findall(r"<(?:script|link)[^>]* (?:src|href)=\"([^\"]*)", page)
        assert any(one.endswith(".js") for one in fetched)
        assert not any(":" in one for one in fetched)  # all from where the page comes from
        for host in (link["Host"], netloc(local)):  # also where somebody sits at the machine
            refused = ask(local, "PUT", "/models/a.gguf", mine | {"Host": host}, raw=b"GGUF" + bytes(60))
            assert (refused.status, "shared by a public link" in refused.text) == (403, True)
    finally:
        app.close(verbose=False)
        log_ins.close()
