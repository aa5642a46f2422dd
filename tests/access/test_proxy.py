"""Behind nginx, as docs/serving.md has it: TLS, a path of its own, and headers that clients make up."""

import http.client
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from hierchat.cli.options import CommandError
from hierchat.cli.serve import public_address
from tests.access.conftest import ACCOUNT, PAGE, RIGHT
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService
from tests.testing.ports import free_port
from tests.testing.raw import ask

NAME = "chat.localhost"  # browsers take such names for this machine, and hierchat does not
FORGED = {
    "X-Forwarded-Host": "evil.example",
    "X-Gradio-Server": "https://evil.example/x",
    "Forwarded": "host=evil.example",
    "X-Forwarded-For": "127.0.0.1",
}


@dataclass(frozen=True)
class Proxy:
    folder: Path
    port: int = 0

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}/chat"

    def start(self, address: str) -> subprocess.Popen[bytes]:
        """Run nginx by the lines of the documents, but for its names, ports and places."""
        written = Path("docs/serving.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"```nginx\n(.*?)```", written, re.DOTALL)
        for theirs, ours in {
            "listen 443": f"listen 127.0.0.1:{self.port}",
            "chat.example.org": NAME,
            "/etc/ssl": str(self.folder),
            "http://127.0.0.1:7860/": address,
        }.items():
            assert theirs in block
            block = block.replace(theirs, ours)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {self.folder}/{kind}; " for kind in kinds)
        config = f"daemon off; pid {self.folder}/pid; error_log {self.folder}/log; events {{}}\n"
        config += f"http {{ access_log off; {places}\n{block}}}"
        (self.folder / "nginx.conf").write_text(config)
        process = subprocess.Popen(["nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")])
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return process
            except OSError:
                continue
        raise AssertionError((self.folder / "log").read_text())

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: str = ""
    ) -> http.client.HTTPResponse:
        """One request over TLS, by the name that a browser would use."""
        context = ssl._create_unverified_context()
        wire = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)
        wire.request(method, path, body or None, {"Host": f"{NAME}:{self.port}"} | headers)
        return wire.getresponse()


@pytest.fixture
def proxy(tmp_path: Path) -> Proxy:
    if not shutil.which("nginx") or not shutil.which("openssl"):
        pytest.skip("no nginx: apt-get install nginx-light")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={NAME}"]
    made += ["-keyout", str(tmp_path / "chat.key"), "-out", str(tmp_path / "chat.pem")]
    subprocess.run(made, check=True, capture_output=True)
    return Proxy(tmp_path, free_port())


@pytest.fixture
def behind(proxy: Proxy, fresh: FakeService) -> Iterator[Proxy]:
    with driving.serving(fresh, ACCOUNT, public_url=proxy.url) as address:
        process = proxy.start(address)
        try:
            yield proxy
        finally:
            process.terminate()
            process.wait()


@pytest.mark.browser
def test_a_browser_logs_in_and_chats_below_a_path(behind: Proxy, chromium: Browser) -> None:
    context = chromium.new_context(ignore_https_errors=True)
    page, foreign = context.new_page(), []
    page.on(
        "request", lambda r: None if driving._own(r.url, f"{NAME}:{behind.port}") else foreign.append(r.url)
    )
    visitor = driving.Chat(page, f"{behind.url}/", foreign)
    page.goto(visitor.address)
    expect(page).to_have_url(f"{behind.url}/login")
    visitor.log_in(*ACCOUNT)
    assert visitor.ask("Over there?")
    (cookie,) = context.cookies()
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")
    page.reload()
    visitor.go_to("Over there?")
    assert foreign == []
    context.close()


def test_no_header_of_a_client_changes_who_it_is_or_where_the_page_lies(behind: Proxy) -> None:
    origin = f"https://{NAME}:{behind.port}"
    for forged in ({}, FORGED):
        answer = behind.ask("GET", "/chat/", PAGE | forged)
        assert (answer.status, answer.headers["Location"]) == (303, "login")
        assert behind.ask("GET", "/chat/config", forged).status == 401
        answer = behind.ask("POST", "/chat/login", forged | {"Origin": origin}, urlencode(RIGHT))
        cookie = answer.headers["Set-Cookie"]
        assert "Secure" in cookie
        answer = behind.ask("GET", "/chat/config", forged | {"Cookie": cookie.partition(";")[0]})
        told = answer.read().decode()
        assert f'"root":"{behind.url}"' in told
        assert "evil.example" not in told
    for other in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": f"http://{NAME}"}):
        assert behind.ask("POST", "/chat/login", other, urlencode(RIGHT)).status == 403


@pytest.mark.parametrize("header", [*FORGED, "Via", "X-Real-IP"])
def test_without_a_login_nothing_is_handed_on(open_address: str, header: str) -> None:
    assert ask(open_address, "GET", "/gradio_api/app_id").status == 200
    for path in ("/", "/config", "/gradio_api/app_id", "/transfer/out/x"):
        answer = ask(open_address, "GET", path, {header: FORGED.get(header, "203.0.113.7")})
        assert (answer.status, "--public-url" in answer.text) == (403, True)


CLOSED = """upload component_server file=https://evil.example/ file/etc/passwd proxy=http://127.0.0.1:1/ openapi.json
call/x deep_link?session_hash=x stream/x/1/1/playlist.m3u8 dev/reload upload_progress?upload_id=x process_recording"""


@pytest.mark.parametrize("path", CLOSED.split())
def test_routes_that_the_page_does_not_need_are_closed_without_a_login_too(
    open_address: str, path: str
) -> None:
    for method in ("GET", "POST"):
        assert ask(open_address, method, f"/gradio_api/{path}", json_body={}).status == 404


@pytest.mark.parametrize(
    "url",
    ["http://a.example", "a.example", "https://", "https://a b/", "https://u@a/", "https://a/?b", "ftp://a"],
)
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(CommandError, match="is what browsers open"):
        public_address(url)
    assert public_address("https://chat.example.org:8443/x/") == "https://chat.example.org:8443/x"
