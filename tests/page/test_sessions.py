"""What a page is doing and what it waits for: without a browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from benchmarks.page.tab import Tab
from hierchat.page import status
from hierchat.page.page_app import is_loopback, login
from hierchat.page.page_sessions import Sessions, Stale
from hierchat.runtime.model_slot import SlotStatus
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService


def test_what_a_reply_waits_for_is_said() -> None:
    assert "one other reply" in status.waiting_line(1, SlotStatus(), loaded=False)
    coming = SlotStatus("m", "downloading", 1_000_000, 93_000_000)
    assert "2 replies" in status.waiting_line(2, coming, loaded=False)
    assert "1 of 93 MB" in status.waiting_line(0, coming, loaded=False)
    assert "Waiting for the model" in status.waiting_line(0, SlotStatus("m", "ready"), loaded=True)


def test_which_chats_the_pages_of_a_user_show() -> None:
    sessions = Sessions()
    page = sessions.open("a")
    page.user, page.conversation = 1, 7
    assert sessions.any_of(1)
    assert sessions.show(1, 7)
    assert not sessions.any_of(2)
    assert not sessions.show(2, 7)
    assert not sessions.show(1, 8)
    assert sessions.close("a") is page
    assert page.gone
    assert not sessions.any_of(1)
    assert not sessions.show(1, 7)
    assert sessions.close("a") is None


def test_a_page_that_was_never_opened_here_is_stale() -> None:
    """After a restart its chat is not known: a message must not begin another one."""
    sessions = Sessions()
    with pytest.raises(Stale):
        sessions.of("a")
    assert sessions.open("a") is sessions.of("a")
    sessions.close("a")
    with pytest.raises(Stale):
        sessions.of("a")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("192.168.1.2", False)],
)
def test_only_loopback_goes_without_a_login(host: str, expected: bool, fresh: FakeService) -> None:
    assert is_loopback(host) is expected
    assert (login(host, share=False, asked=False, store=fresh.store) is None) is expected
    assert login(host, share=True, asked=False, store=fresh.store)
    made = login(host, share=False, asked=True, store=fresh.store)
    assert made
    assert len(made[1]) >= 32
    member = made[0].members.recognise("guest", made[1])
    assert member
    assert member.account is None


@pytest.fixture
def app(fresh: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """What is served, and where."""
    apps: list[Any] = []
    build = driving.build_app
    monkeypatch.setattr(driving, "build_app", lambda *args: apps.append(build(*args)) or apps[0])
    with driving.serving(fresh) as address:
        yield apps[0], address


def soon(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + driving.PATIENCE_MS / 1e3
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_nothing_is_held_of_pages_that_were_closed(app: tuple[Any, str], fresh: FakeService) -> None:
    """Gradio held each of them as it was drawn last: 0.7 MB a visit, the words of the chats among it."""
    blocks, address = app
    held, queue = blocks.state_holder, blocks._queue
    fresh.script.seconds = 60
    stays = Tab(address)
    for _ in range(3):
        tab = Tab(address)
        tab.fire("hc-bus", "hc_panel", text="models")
        tab.fire(
            "hc-box", "submit", "Reverse a string", messages=4
        )  # and vanishes in the middle of the reply
        assert set(held.session_data) == {stays.key, tab.key}
        tab.leave()
        soon(lambda: not queue.event_ids_to_events)
        held.session_data.pop(tab.key, None)  # if its last event brought it back: that is below
    fresh.in_progress.stop(fresh.store.users.ensure("local"))
    assert len(held.time_last_used) == 4
    for key in held.time_last_used:
        held[key]  # as an event that outlives its page
        held.time_last_used[key] -= timedelta(minutes=2)
    last = Tab(address)
    both = {stays.key, last.key}
    assert set(held.session_data) == set(held.time_last_used) == both
    assert set(queue.pending_event_ids_session) <= both
    assert set(queue.pending_messages_per_session) <= both
    stays.fire("hc-bus", "hc_panel", text="settings")  # an open page may rest for long
    for one in (stays, last):
        one.leave()
    soon(lambda: not held.session_data)
