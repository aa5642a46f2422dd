"""Who may ask: keys, this machine, other pages; and what a key may use and leaves behind."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hierchat.api.keys import ApiError, KeyLimits
from hierchat.drafting.source import Successors
from hierchat.store import Access, Key, Store
from hierchat.store.errors import DatabaseUnwritable
from hierchat.store.records import NewMessage
from tests.api.scripted import Script, Served, make_slot, serving
from tests.testing.deleting import on_disk
from tests.testing.raw import ask_endpoint as ask
from tests.testing.raw import bearer

CHAT = "/v1/chat/completions"
SECRET = "the longest river"
ASKED = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 12}
MESSAGES = "/v1/messages"
ADDRESSES = [("POST", CHAT), ("POST", "/v1/completions"), ("POST", MESSAGES), ("GET", "/v1/models")]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory):
    """Programs need a key, on this machine too."""
    with serving(tmp_path_factory.mktemp("keyed"), make_slot(), "keys") as served:
        yield served


@pytest.mark.parametrize(("method", "path"), ADDRESSES)
def test_nothing_is_answered_without_a_key(
    keyed: Served, tiny_served: Served, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    """Nor off loopback, where none is needed on this machine."""
    wrong = [bearer("hc-wrong"), bearer(""), {"Authorization": "Basic eDp5"}, {"X-Api-Key": "hc-no"}]
    for headers in ({}, *wrong):
        answer = ask(keyed.address, method, path, ASKED, headers)
        assert (answer.status, answer.error["type"]) == (401, "authentication_error")
        assert answer.json.get("type") == ("error" if path == MESSAGES else None)  # Anthropic's form
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    monkeypatch.setattr("hierchat.access.hosts.LOOPBACK", ())  # as if asked under an address of the network
    for address in (path, "/health"):
        method = "GET" if address == "/health" else method
        assert ask(tiny_served.address, method, address, ASKED).status == 401


def test_a_key_opens_until_it_is_removed_and_the_switch_in_the_store_counts(keyed: Served) -> None:
    key = keyed.store.keys.add("editor")
    expected: list[tuple[Access, int, int]] = [("off", 404, 404), ("open", 200, 200), ("keys", 401, 200)]
    for access, without, having in expected:
        keyed.store.keys.set_access(access)
        assert ask(keyed.address, "GET", "/v1/models").status == without
        assert ask(keyed.address, "GET", "/v1/models", headers=bearer(key)).status == having
    for headers in (bearer(key), {"X-Api-Key": key}):
        assert ask(keyed.address, "POST", CHAT, ASKED, headers).status == 200
    keyed.store.keys.remove("editor")
    assert ask(keyed.address, "POST", CHAT, ASKED, bearer(key)).status == 401


@pytest.mark.parametrize(
    ("end", "stream", "path"),
    [
        ("key removed", True, CHAT),
        ("key removed", False, MESSAGES),
        ("switched off", True, MESSAGES),
        ("switched off", False, CHAT),
    ],
)
def test_what_is_being_written_ends_with_its_key(
    endpoint: Served,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    stream: bool,
    path: str,
) -> None:
    monkeypatch.setattr("hierchat.api.endpoint.LOOK_SECONDS", 0.05)
    script.text, script.holds_at, served = "one two three", 3, endpoint
    key = served.store.keys.add(name := f"{end} {stream}")
    served.store.keys.set_access("keys")
    asked = {**ASKED, "max_tokens": 50, "stream": stream}
    with ThreadPoolExecutor(1) as asking:
        got = asking.submit(ask, served.address, "POST", path, asked, bearer(key))
        assert script.began.wait(60)
        if end == "switched off":
            served.store.keys.set_access("off")
        else:
            served.store.keys.remove(name)
        assert script.stopped.wait(60)
        answer = got.result(60)
    assert "three" not in answer.text
    assert "[DONE]" not in answer.text
    assert answer.status == (200 if stream else 401 if end == "key removed" else 403)
    told = "opens nothing" if end == "key removed" else "switched off"
    head, _, error = answer.text.rpartition("data: ")
    assert told in error
    assert head.endswith("event: error\n") == (stream and path == MESSAGES)


def test_a_key_is_nowhere_in_the_file(tmp_path: Path) -> None:
    with Store.open(tmp_path / "chat.db") as store:
        key = store.keys.add("editor", history=True)
        assert store.keys.find(key) == store.keys.all()[0]
        assert store.keys.find(key + "x") is None
    assert key[3:].encode() not in on_disk(tmp_path / "chat.db")


def test_the_login_of_the_page_is_no_way_in_and_no_hindrance(tmp_path: Path) -> None:
    with serving(tmp_path, make_slot(), "keys", ("me", "a long password")) as served:
        key = served.store.keys.add("editor")
        assert ask(served.address, "GET", "/v1/models", headers=bearer(key)).status == 200
        assert ask(served.address, "GET", "/v1/models").status == 401
        assert ask(served.address, "GET", "/gradio_api/info", headers=bearer(key)).status == 401


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Origin", "null"),
        ("Origin", "app://obsidian.md"),
        ("Host", "evil.example"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_no_page_of_another_site_comes_in(tiny_served: Served, name: str, value: str) -> None:
    for method, path in (*ADDRESSES, ("OPTIONS", CHAT), ("GET", "/health")):
        answer = ask(tiny_served.address, method, path, ASKED, {name: value})
        assert answer.status == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"])
def test_what_is_handed_on_from_elsewhere_needs_a_key(tiny_served: Served, name: str) -> None:
    key = bearer(tiny_served.store.keys.add(f"over {name}"))
    for headers, status in (({name: "203.0.113.7"}, 401), ({name: "127.0.0.1", **key}, 200)):
        assert ask(tiny_served.address, "GET", "/v1/models", headers=headers).status == status


@contextmanager
def hanging_up(served: Served, **more: object) -> Iterator[socket.socket]:
    """Send a request, and close the connection without reading the answer."""
    body, address = json.dumps({**ASKED, **more}), urlsplit(served.address)
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_the_engine(endpoint: Served, script: Script, stream: bool) -> None:
    script.text, script.holds_at = "one two three", 2
    with hanging_up(endpoint, stream=stream):
        assert script.began.wait(60)
    assert script.stopped.wait(60)
    script.go.set()
    assert ask(endpoint.address, "POST", CHAT, ASKED).status == 200


def test_one_that_waits_and_hangs_up_leaves_the_queue(endpoint: Served, script: Script) -> None:
    served, scheduler = endpoint, endpoint.service.slot.scheduler
    script.holds_at = 1
    with ThreadPoolExecutor(1) as asking:
        first = asking.submit(ask, served.address, "POST", CHAT, ASKED)
        assert script.began.wait(60)
        with hanging_up(served):
            while not scheduler.waiting:
                time.sleep(0.01)
        while scheduler.waiting:
            time.sleep(0.01)
        script.go.set()
        first.result(60)
    assert len(script.asked) == 1


def texts_of(store: Store) -> str:
    """All that is kept of anybody's conversations."""
    with store.connection.read() as db:
        rows = db.execute("SELECT text FROM messages UNION ALL SELECT title FROM conversations").fetchall()
        return "\n".join(text for (text,) in rows)


def test_without_a_history_nothing_is_kept(keyed: Served) -> None:
    key = keyed.store.keys.add("forgetful")
    before = texts_of(keyed.store)
    assert ask(keyed.address, "POST", CHAT, ASKED, bearer(key)).status == 200
    assert texts_of(keyed.store) == before
    user = -next(one.id for one in keyed.store.keys.all() if one.name == "forgetful")
    nobody = keyed.service._histories.held(user, "key of tiny")
    assert not any(len(source.index) for source in nobody.sources)
    learned = keyed.service._learned.held(user, "key of tiny")
    assert learned.successors.to_bytes() == Successors().to_bytes()


def test_a_history_drafts_for_its_own_key_alone(keyed: Served) -> None:
    person = keyed.store.users.ensure("local")
    keys = {name: keyed.store.keys.add(name, history=name != "bare") for name in ("first", "second", "bare")}
    users = {key.name: key.user_id for key in keyed.store.keys.all() if key.user_id}
    asked = {**ASKED, "max_tokens": 30, "temperature": 0, "logit_bias": {"2": -100}}

    def drafted(name: str) -> tuple[str, int]:
        answer = ask(keyed.address, "POST", CHAT, asked, bearer(keys[name])).json
        return answer["choices"][0]["message"]["content"], answer["usage"]["hierchat"]["accepted"]

    words, fresh = drafted("first")
    again, helped = drafted("first")
    assert again == words  # drafts change no word
    assert helped > fresh
    assert drafted("second") == (words, fresh)
    assert [len(keyed.store.chats.find(users[name])) for name in ("first", "second")] == [2, 1]
    assert keyed.store.chats.find(person) == []
    # And what a person wrote drafts for no key.
    mine = keyed.store.chats.create(person)
    keyed.store.messages.add(person, mine, NewMessage(None, words))
    assert drafted("bare") == (words, fresh)


def test_tokens_are_counted_and_limits_hold(keyed: Served) -> None:
    key = keyed.store.keys.add("small", per_minute=100, tokens_per_day=10)
    used = ask(keyed.address, "POST", CHAT, ASKED, bearer(key)).json["usage"]["total_tokens"]
    while (known := keyed.store.keys.find(key)) is None or known.today == 0:
        time.sleep(0.01)
    assert (known.today, known.used_at is not None) == (used, True)
    answer = ask(keyed.address, "POST", CHAT, ASKED, bearer(key))
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert "10 tokens a day" in answer.error["message"]
    assert ask(keyed.address, "GET", "/v1/models", headers=bearer(key)).status == 200
    one = bearer(keyed.store.keys.add("one by one", at_once=1))
    for _ in range(2):
        assert ask(keyed.address, "POST", CHAT, {**ASKED, "max_tokens": 2}, one).status == 200


def test_a_file_that_cannot_be_read_is_told_as_any_error(
    keyed: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Access:
        raise DatabaseUnwritable("/home/you/chat.db cannot be written (the disk reports an error).")

    monkeypatch.setattr(keyed.store.keys, "access", fails)
    answer = ask(keyed.address, "POST", CHAT, ASKED)
    assert (answer.status, "cannot be used just now" in answer.error["message"]) == (503, True)
    assert "/home/you" not in answer.text


def test_limits() -> None:
    now = [0.0]
    limits = KeyLimits(lambda: now[0])
    key = Key(1, "k", 0.0, None, None, at_once=2, per_minute=3, tokens_per_day=None)
    first = limits.enter(key)
    limits.enter(key)()
    second = limits.enter(key)
    with pytest.raises(ApiError, match="2 replies at once"):
        limits.enter(key)
    first()
    second()
    with pytest.raises(ApiError, match="3 requests a minute") as refused:
        limits.enter(key)
    assert refused.value.headers == {"Retry-After": "60"}
    now[0] = 60.0
    limits.enter(key)()
    limits.enter(Key(2, "other", 0.0, None, None, None, None, None))
