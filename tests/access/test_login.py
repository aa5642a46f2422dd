"""With a login: nothing but the login page answers a stranger, wrong passwords cost time, and log-out ends it all."""

import itertools
import re
import threading
from collections import Counter
from typing import Any

import anyio
import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from hierchat.access.hosts import AllowedHosts
from hierchat.access.login import (
    ELSEWHERE,
    FORGET_SECONDS,
    HERE,
    USER,
    WRONG,
    AttemptGroup,
    LoginMiddleware,
    Throttle,
    of_account,
)
from hierchat.access.login_sessions import LIFE_SECONDS, MOST_SESSIONS, LoginSessions, Member, Members
from tests.access.conftest import ACCOUNT, PAGE, RIGHT, log_in
from tests.isolation.visitor import Visitor
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService
from tests.testing.raw import ask

METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def paths_of(routes: Any, before: str = "") -> set[str]:
    """Every path of an app, its routers' and mounts' too, with something put in for what varies."""
    found: set[str] = set()
    for route in routes:
        path = before + getattr(route, "path", "")
        within = getattr(route, "original_router", route)  # FastAPI keeps included routers as they are
        found |= paths_of(getattr(within, "routes", []), path)
        found.add(re.sub(r"{[^}]*}", "x", path))
    return found


def test_no_route_answers_without_a_cookie(fresh: FakeService, apps: list[Any]) -> None:
    with driving.serving(fresh, ACCOUNT) as address:
        paths = paths_of(apps[0].server_app.routes)
        assert {"/gradio_api/cancel", "/gradio_api/app_id", "/gradio_api/page/x", "/config"} <= paths
        paths |= {"/openapi.json", "/docs", "/", "//", "/login/", "/login/x", "/LOGIN", "/static/../config"}
        cookie = log_in(address)
        for path, method in itertools.product(
            sorted((paths | {"/password", "/logout/"}) - {"/login"}), METHODS
        ):
            for headers in ({}, PAGE, {"Cookie": cookie["Cookie"][:-1]}):
                answer = ask(address, method, path or "/", headers, read=500)
                if path in ("/manifest.json", "/icon.png") and method in ("GET", "HEAD"):
                    assert answer.status == 200  # browsers that install the page ask without cookies
                elif path == "/logout":
                    assert (answer.status, answer.headers["Location"]) in [(303, "./"), (303, "login")]
                elif method in ("GET", "HEAD") and headers is PAGE:
                    said = answer.headers["Location"].replace("../", "")
                    assert (answer.status, said) == (303, "login"), (method, path)
                else:
                    assert answer.status == 401, (method, path)
                    assert answer.text in ("", "Log in first, at /login.\n")
        assert ask(address, "GET", "/config", cookie).status == 200
        assert ask(address, "GET", "/gradio_api/app_id", cookie).status == 200


def test_the_login_page_is_all_in_one(address: str) -> None:
    page = ask(address, "GET", "/login")
    assert page.status == 200
    assert not re.findall(r"""(?:src|href|action)=["'](?!data:)|url\(|@import|<script""", page.text)
    assert page.headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'self'" in page.headers["Content-Security-Policy"]


def test_a_browser_is_led_to_the_login_and_back_to_the_chat_that_it_asked_for(address: str) -> None:
    assert ask(address, "GET", "/?c=12", PAGE).headers["Location"] == "login?c=12"
    answer = ask(address, "POST", "/login?c=12", PAGE, form=RIGHT)
    assert (answer.status, answer.headers["Location"]) == (303, "./?c=12")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert f"Max-Age={LIFE_SECONDS}" in cookie
    assert "Secure" not in cookie  # plain http on this machine
    there = {"Cookie": answer.cookie} | PAGE
    assert ask(address, "GET", "/login?c=12", there).headers["Location"] == "./?c=12"
    answer = ask(address, "POST", "/login?//evil.example/", PAGE, form=RIGHT)
    assert answer.headers["Location"].startswith("./?")


def test_another_page_can_neither_log_in_nor_out(address: str) -> None:
    cookie = log_in(address)
    elsewhere = cookie | {"Origin": "http://localhost:3000"}
    for path in ("/login", "/logout"):
        assert ask(address, "POST", path, elsewhere, form=RIGHT).status == 403
    assert ask(address, "GET", "/logout", cookie).headers["Location"] == "./"
    assert ask(address, "GET", "/config", cookie).status == 200


def test_a_wrong_password_keeps_the_name_and_says_what_is_wrong(address: str) -> None:
    page = ask(address, "POST", "/login", PAGE, form={"username": 'm"<e', "password": "wrong"})
    assert page.status == 401
    assert WRONG in page.text
    assert 'value="m&#34;&lt;e"' in page.text
    assert "wrong" not in page.text
    assert page.headers["Set-Cookie"] is None
    empty = ask(address, "POST", "/login", PAGE, form={"username": "me", "password": " "})
    assert (empty.status, "Type the name and the password." in empty.text) == (400, True)
    assert ask(address, "POST", "/login", form={"username": "me", "password": "x" * 5000}).status == 413
    assert ask(address, "POST", "/login", json_body=RIGHT).status == 400
    assert ask(address, "POST", "/login", form=RIGHT | {"username": "you"}).status == 401
    log_in(address)


def test_after_log_out_the_cookie_opens_nothing_and_streams_end(address: str) -> None:
    visitor, other = Visitor(address, *RIGHT.values()), log_in(address)
    visitor.open()
    cookie, path, ended = visitor.headers, f"/gradio_api/page/{visitor.hash}", threading.Event()

    def listen() -> None:
        ask(address, "GET", path, cookie)  # reads to the end, which an open page has none of
        ended.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert ask(address, "GET", path, cookie, read=5).text == "id: 1"
    assert not ended.is_set()
    answer = ask(address, "POST", "/logout", cookie)
    assert (answer.status, answer.headers["Location"]) == (303, "login")
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert ended.wait(20)
    assert ask(address, "GET", "/config", cookie).status == 401
    assert ask(address, "POST", "/logout", cookie).status == 303
    assert ask(address, "GET", "/config", other).status == 200


class Anyone(Members):
    """ACCOUNT alone, without a store."""

    guests_come = False

    def __init__(self) -> None:
        pass

    def recognise(self, name: str, password: str) -> Member | None:
        return Member(name) if (name, password) == ACCOUNT else None

    def still(self, member: Member) -> bool:
        return True


NEW = "another long password"


def change(address: str, cookie: dict[str, str], now: str, new: str, again: str | None = None) -> Any:
    form = {"password": now, "new": new, "again": new if again is None else again}
    return ask(address, "POST", "/password", cookie | PAGE, form=form)


def test_a_password_is_changed_by_whoever_knows_it(fresh: FakeService) -> None:
    with driving.serving(fresh, ACCOUNT) as address:
        mine, other = log_in(address), log_in(address)
        page = ask(address, "GET", "/password", mine | PAGE)
        assert page.status == 200
        assert not re.findall(r"""(?:src|action)=["'](?!data:)|url\(|@import|<script""", page.text)
        stored = fresh.store.accounts.find("me")
        for status, told, answer in (
            (400, "two new passwords differ", change(address, mine, ACCOUNT[1], NEW, "another")),
            (400, "8 to 1,000 characters", change(address, mine, ACCOUNT[1], "short")),
            (401, "not your current password", change(address, mine, "wrong", NEW)),
            (413, "too long", change(address, mine, ACCOUNT[1], "x" * 5000)),
            (400, "8 to 1,000 characters", change(address, mine, "", "")),
        ):
            assert (answer.status, told in answer.text) == (status, True)
            assert NEW not in answer.text
        assert change(address, mine | {"Origin": "http://localhost:3000"}, ACCOUNT[1], NEW).status == 403
        assert fresh.store.accounts.find("me") == stored
        answer = change(address, mine, ACCOUNT[1], NEW)
        assert (answer.status, "was changed" in answer.text) == (200, True)
        assert ask(address, "GET", "/config", mine).status == 200  # this browser stays
        assert ask(address, "GET", "/config", other).status == 401
        assert ask(address, "POST", "/login", form=RIGHT).status == 401
        assert ask(address, "POST", "/login", form=RIGHT | {"password": NEW}).status == 200
        told = [change(address, mine, "wrong", ACCOUNT[1]).status for _ in range(HERE.free + 1)]
        assert told == [401] * HERE.free + [429]  # guesses are slowed down here, too
        assert ask(address, "GET", "/config", mine).status == 200


def test_a_guest_has_no_password_to_change(fresh: FakeService) -> None:
    with driving.serving(fresh, log_ins=LoginSessions(Members(fresh.store, "for guests"))) as address:
        form = {"username": "guest", "password": "for guests"}
        cookie = {"Cookie": ask(address, "POST", "/login", form=form).cookie}
        for method in ("GET", "POST"):
            answer = ask(address, method, "/password", cookie | PAGE)
            assert (answer.status, answer.headers["Location"]) == (303, "./")


class Doors:
    """A login in front of one line of text, with a clock to set."""

    def __init__(self, link: str | None = None) -> None:
        self.clock = Clock()

        async def inside(scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse(scope[USER])(scope, receive, send)

        self.app = LoginMiddleware(
            inside, LoginSessions(Anyone(), self.clock), AllowedHosts("0.0.0.0", lambda: link)
        )

    def client(self, host: str = "127.0.0.1", base: str = "http://localhost:7860") -> TestClient:
        return TestClient(self.app, base, client=(host, 5), follow_redirects=False)


def test_waits_grow_and_are_said_and_the_right_password_ends_them() -> None:
    doors = Doors()
    client = doors.client()
    wrong = RIGHT | {"password": "no"}
    for _ in range(HERE.free - 1):
        page = client.post("/login", data=wrong)
        assert (page.status_code, "Try again" in page.text) == (401, False)
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        page = client.post("/login", data=wrong)
        unit = "second" if seconds == 1 else "seconds"
        assert (page.status_code, f"{WRONG} Try again in {seconds} {unit}." in page.text) == (401, True)
        page = client.post("/login", data=RIGHT)
        assert (page.status_code, page.headers["Retry-After"]) == (429, str(seconds))
        assert f"Too many attempts. Try again in {seconds} {unit}." in page.text
        assert 'value="me"' in page.text
        doors.clock.now += seconds
    assert client.post("/login", data=RIGHT).status_code == 200
    page = client.post("/login", data=wrong)
    assert (page.status_code, "Try again" in page.text) == (401, False)


def test_attempts_from_elsewhere_do_not_lock_out_who_sits_at_the_machine() -> None:
    doors = Doors("https://abc.gradio.live")
    wrong = RIGHT | {"password": "no"}
    over_link = doors.client(base="https://abc.gradio.live")  # the relay's end is on this machine, too
    for _ in range(HERE.free):
        over_link.post("/login", data=wrong)
    assert over_link.post("/login", data=RIGHT).status_code == 429
    assert doors.client().post("/login", data=RIGHT).status_code == 200
    # One address after another: together they wait, too, but not for long.
    for number in range(ELSEWHERE.free + 20):
        wrong["username"] = f"someone{number}"
        page = doors.client(f"192.168.0.{number}").post("/login", data=wrong)
    assert page.status_code == 429
    assert int(page.headers["Retry-After"]) <= ELSEWHERE.longest_seconds
    assert doors.client().post("/login", data=RIGHT).status_code == 200


def test_one_account_is_not_guessed_from_many_addresses() -> None:
    doors = Doors()
    wrong = RIGHT | {"password": "no", "username": "Me"}
    account = of_account("me", here=False)
    for number in range(account.free):
        assert doors.client(f"192.168.0.{number}").post("/login", data=wrong).status_code == 401
    for seconds in (1, 2, 4, 8, 16, 30, 30):
        page = doors.client("192.168.1.1").post("/login", data=RIGHT)
        assert (page.status_code, page.headers["Retry-After"]) == (429, str(seconds))
        doors.clock.now += seconds
        number += 1
        assert doors.client(f"192.168.0.{number}").post("/login", data=wrong).status_code == 401
    assert doors.client("192.168.1.1").post("/login", data=RIGHT | {"username": "you"}).status_code == 401
    assert doors.client().post("/login", data=RIGHT).status_code == 200  # who sits at the machine
    doors.clock.now += 30
    assert doors.client("192.168.1.1").post("/login", data=RIGHT).status_code == 200


def test_who_guesses_at_others_gains_nothing_by_a_right_password_of_their_own() -> None:
    doors = Doors()
    client = doors.client()
    for _ in range(of_account("you", here=True).free):
        assert client.post("/login", data={"username": "you", "password": "no"}).status_code in (401, 429)
        doors.clock.now += HERE.longest_seconds
        assert client.post("/login", data=RIGHT).status_code == 200
    page = client.post("/login", data={"username": "you", "password": "no"})
    assert (page.status_code, page.headers["Retry-After"]) == (401, "2")
    assert client.post("/login", data={"username": "you", "password": "no"}).status_code == 429


def test_guesses_that_come_at_once_are_counted_one_by_one() -> None:
    doors = Doors()
    statuses = Counter[int]()

    async def many() -> None:
        there = httpx.ASGITransport(doors.app, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=there, base_url="http://localhost:7860") as client:

            async def guess() -> None:
                statuses[(await client.post("/login", data=RIGHT | {"password": "no"})).status_code] += 1

            async with anyio.create_task_group() as guesses:
                for _ in range(12):
                    guesses.start_soon(guess)

    anyio.run(many)
    assert statuses == {401: HERE.free, 429: 12 - HERE.free}
    guess = RIGHT | {"password": "no"}  # and one network of IPv6 is one client
    seen = [doors.client(f"2001:db8::{n}").post("/login", data=guess).status_code for n in range(6)]
    assert seen == [401] * HERE.free + [429] * (6 - HERE.free)


def test_wrong_attempts_are_forgotten_after_a_while_and_sessions_end_after_a_week() -> None:
    clock = Clock()
    throttle, lane = Throttle(clock), AttemptGroup("someone")
    for _ in range(10):
        throttle.failed([lane])
    assert throttle.wait([lane]) == lane.longest_seconds
    clock.now += FORGET_SECONDS
    throttle.failed([lane])
    assert throttle.wait([lane]) == 0
    sessions = LoginSessions(Anyone(), clock)
    token = sessions.begin(Member("me"))
    assert sessions.find(token)
    assert sessions.find(token + "x") is sessions.find("") is sessions.find(None) is None
    clock.now += LIFE_SECONDS
    assert sessions.find(token) is None


def test_an_account_has_no_more_sessions_than_it_can_use() -> None:
    """A program that logs in for everything that it asks left each of them there for a week."""
    sessions = LoginSessions(Anyone(), Clock())
    hers = sessions.begin(Member("her"))
    first, *others = (sessions.begin(Member("me")) for _ in range(MOST_SESSIONS))
    held = sessions.find(first)
    held.seen += 1  # it is the one that is used
    newest = sessions.begin(Member("me"))
    assert len(sessions.connected()) == 1 + MOST_SESSIONS
    assert sessions.find(others[0]) is None
    assert all(map(sessions.find, [hers, first, *others[1:], newest]))


def test_the_cookie_is_secure_where_the_address_is() -> None:
    doors = Doors("https://abc.gradio.live")
    for base, secure in [
        ("http://localhost:7860", False),
        ("https://localhost:7860", True),
        ("http://abc.gradio.live", True),  # what arrives from the relay is plain http
    ]:
        cookie = doors.client(base=base).post("/login", data=RIGHT).headers["Set-Cookie"]
        assert ("Secure" in cookie) is secure


def test_gradio_may_call_itself_only_while_it_starts() -> None:
    starting = [True]

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("inside")(scope, receive, send)

    doors = LoginMiddleware(
        inside, LoginSessions(Anyone()), AllowedHosts("127.0.0.1"), starting=lambda: starting[0]
    )
    client = TestClient(doors)
    assert client.get("/gradio_api/startup-events").text == "inside"
    assert client.get("/config").status_code == 401
    starting[0] = False
    assert client.get("/gradio_api/startup-events").status_code == 401


def test_a_socket_needs_a_session() -> None:
    with pytest.raises(WebSocketDisconnect), Doors().client().websocket_connect("/"):
        pass


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
