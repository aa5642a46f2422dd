"""Panels in place of a chat: their addresses, back and forward, the theme, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests import browser as driving
from tests.browser import Chat
from tests.ui.chats import stored_chat
from tests.ui.fake_service import FakeService

pytestmark = pytest.mark.browser


def open_panel(chat: Chat, title: str) -> None:
    chat.page.locator("#hc-links").get_by_role("button", name=title, exact=True).click()
    expect(chat.page.locator("#hc-title")).to_have_text(title)


def test_a_panel_has_an_address_and_the_browser_goes_back_from_it(chat: Chat, service: FakeService) -> None:
    number = stored_chat(service.store, "Story", 2)
    chat.open(f"?c={number}")
    expect(chat.replies).to_have_count(2)
    open_panel(chat, "Settings")
    page = chat.page
    expect(page).to_have_url(re.compile(r"\?view=settings$"))
    expect(page.locator("#hc-theme")).to_be_visible()
    expect(page.locator("#hc-box")).to_be_hidden()
    expect(page.locator("#hc-links [aria-current]")).to_have_text("Settings")
    page.reload()
    expect(page.locator("#hc-theme")).to_be_visible()
    page.go_back()
    expect(chat.replies).to_have_count(2)
    expect(page.locator("#hc-theme")).to_be_hidden()
    page.go_forward()
    expect(page.locator("#hc-theme")).to_be_visible()
    page.locator("#hc-new").click()
    expect(page.locator("#hc-empty")).to_be_visible()
    expect(page.locator("#hc-box")).to_be_visible()


def test_a_reply_goes_on_while_a_panel_is_open(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 3
    chat.send("Slow chat")
    expect(chat.words.last).to_contain_text("Here is")
    open_panel(chat, "Settings")
    expect(chat.page.locator("#hc-live")).to_contain_text("Still writing in “Slow chat”")
    expect(chat.page.locator("#hc-live")).to_be_empty(timeout=10_000)
    expect(chat.page.locator("#hc-theme")).to_be_visible()
    chat.page.get_by_role("button", name="Slow chat", exact=True).click()
    expect(chat.words.last).to_contain_text("combined characters")


def test_an_unknown_view_in_the_address_is_the_empty_page(chat: Chat) -> None:
    chat.open("?view=nothing")
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    expect(chat.page).not_to_have_url(re.compile("view="))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_theme_is_this_browsers_choice(
    chromium: Browser, server: tuple[FakeService, str], width: int
) -> None:
    with driving.visiting(chromium, server[1], width, 800) as chat:
        chat.open("?view=settings")
        body = chat.page.locator("body")
        expect(body).not_to_have_class(re.compile(r"\bdark\b"))
        chat.shot(f"settings-{width}")
        chat.page.get_by_label("Dark").check()
        expect(body).to_have_class(re.compile(r"\bdark\b"))
        chat.page.reload()
        expect(chat.page.get_by_label("Dark")).to_be_checked()
        expect(body).to_have_class(re.compile(r"\bdark\b"))
        expect(chat.page.locator("#hc-theme")).to_be_visible()
        chat.shot(f"settings-dark-{width}")
