"""What a page is doing and what it waits for: without a browser."""

from __future__ import annotations

import pytest

from hierchat.ui import status
from hierchat.ui.launch import is_loopback, login
from hierchat.ui.sessions import Sessions, Stale
from tests.ui.fake_service import FakeHost, FakeService, HostStatus


def test_what_a_reply_waits_for_is_said() -> None:
    host = FakeHost()
    assert "one other reply" in status.waiting_line(1, host)
    host.status = HostStatus("m", "downloading", 1_000_000, 93_000_000)
    assert "2 replies" in status.waiting_line(2, host)
    assert "1 of 93 MB" in status.waiting_line(0, host)
    host.status = HostStatus("m", "ready")
    assert "Waiting for the model" in status.waiting_line(0, host)


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
