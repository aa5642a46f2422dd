"""Accounts and guests as they see the page, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from hierchat.access.login_sessions import LoginSessions
from hierchat.access.members import GUEST_LOGIN, Members
from tests.page.raw import ask
from tests.testing import browser as driving
from tests.testing.browser import PATIENCE_MS, Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
ANN, BEN = ("ann", "the password of ann"), ("ben", "the password of ben")
LOOKS = [("light", 1280, False)]


def log_in(chat: Chat, name: str, password: str) -> Page:
    page = chat.page
    page.goto(chat.address)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#hc-list nav")).to_be_attached(timeout=PATIENCE_MS)
    return page


@pytest.mark.parametrize(("look", "width", "dark"), LOOKS)
def test_the_owner_sees_who_is_connected_and_ends_a_session(
    chromium: Browser, fresh: FakeService, look: str, width: int, dark: bool
) -> None:
    log_ins = driving.log_ins_of(fresh.store, ANN, BEN)
    with (
        driving.serving(fresh, log_ins=log_ins) as address,
        driving.visiting(chromium, address, width, 800, dark) as visitor,
    ):
        form = {"username": BEN[0], "password": BEN[1]}
        ben = {"Cookie": ask(address, "POST", "/login", form=form).cookie}
        page = log_in(visitor, *ANN)
        visitor.view("Settings")
        sessions = page.locator("#hc-connected li")
        expect(sessions).to_have_count(2)
        expect(sessions.filter(has_text="ann (owner)")).to_contain_text("here now · this machine")
        page.get_by_role("heading", name="Who is connected").scroll_into_view_if_needed()
        visitor.shot(f"connected-{look}")
        page.get_by_role("button", name="End session: ben").click()
        expect(page.locator("#hc-live")).to_contain_text("The session of ben has ended.")
        expect(sessions).to_have_count(1)
        assert ask(address, "GET", "/config", ben).status == 401
        assert visitor.foreign == []


def test_stop_and_news_of_another_tab_come_through_the_login(chromium: Browser, fresh: FakeService) -> None:
    """Both go by a route of their own."""
    with driving.serving(fresh, ANN) as address, driving.visiting(chromium, address) as visitor:
        page = log_in(visitor, *ANN)
        fresh.script.seconds = 60
        visitor.send("A long story.")
        expect(page.locator("#hc-live")).to_contain_text("tokens in", timeout=PATIENCE_MS)
        page.locator("#hc-stop").click()
        visitor.idle()
        user = fresh.store.users.ensure("ann")
        fresh.store.chats.create(user, "From elsewhere")
        fresh.changes.notify(user)
        expect(page.locator("#hc-list")).to_contain_text("From elsewhere", timeout=PATIENCE_MS)


@pytest.mark.parametrize(("look", "width", "dark"), LOOKS)
def test_a_guest_is_told_that_their_chats_go_before_they_do(
    chromium: Browser, fresh: FakeService, look: str, width: int, dark: bool
) -> None:
    fresh.script.seconds = 0
    log_ins = LoginSessions(Members(fresh.store, "the guest password"))
    with (
        driving.serving(fresh, log_ins=log_ins) as address,
        driving.visiting(chromium, address, width, 800, dark) as visitor,
    ):
        page = visitor.page
        page.goto(address)
        expect(page.locator("main")).to_contain_text("What you write is deleted when you log out")
        visitor.shot(f"login-guest-{look}")
        log_in(visitor, GUEST_LOGIN, "the guest password")
        visitor.ask("Who is there?")
        if width < 768:
            page.locator(".toggle-button").click()
        expect(page.locator("#hc-log-out")).to_contain_text("guest")
        page.get_by_role("button", name="Log out").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("all your chats will be deleted")
        visitor.shot(f"guest-leaves-{look}")
        dialog.get_by_role("button", name="Cancel").click()
        assert len(log_ins.connected()) == 1
        page.get_by_role("button", name="Log out").click()
        dialog.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{address}login")
        expect(page.get_by_label("Name")).to_be_visible()
        page.wait_for_function("() => true")
        for _ in range(600):
            if not fresh.store.users.ids():
                break
            page.wait_for_timeout(50)
        assert fresh.store.users.ids() == {}
