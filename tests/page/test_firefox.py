"""The main way through the page in Firefox: a reply, its sources and details, every view, the search; dark and narrow.
Playwright drives a Firefox as distributions ship it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, expect

from tests.page.chats import stored_chat
from tests.page.measured import weeks
from tests.page.test_sources import RICH
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.firefox import firefox_browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def fox() -> Iterator[Browser]:
    with firefox_browser() as launched:
        yield launched


@pytest.fixture(scope="module")
def dark_fox() -> Iterator[Browser]:
    with firefox_browser(dark=True) as launched:
        yield launched


@contextmanager
def visiting(fox: Browser, address: str, width: int = 1280) -> Iterator[Chat]:
    """A fresh visitor, to whom the console may say nothing and the network nothing but the page."""
    said: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            said.append(message.text)

    with driving.visiting(fox, address, width, 800 if width > 768 else 844) as chat:
        chat.page.on("console", heard)
        chat.page.on("pageerror", lambda error: said.append(str(error)))
        chat.open()
        yield chat
        assert said == []
        assert chat.foreign == []


def test_a_chat_from_the_question_to_its_reload(
    fox: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    with visiting(fox, server[1]) as chat:
        page = chat.page
        chat.shot("firefox-empty")
        service.script.reply, service.script.seconds = RICH, 60
        chat.send("How is a string reversed?")
        expect(chat.words.last).to_contain_text("Here is")
        expect(page.locator("#hc-live")).to_contain_text("tokens in")
        chat.shot("firefox-writing")
        page.locator("#hc-stop").click()
        chat.idle()
        expect(chat.replies.last).to_contain_text("stopped")
        service.script.seconds = 0
        chat.ask("And now?")
        expect(chat.words.last.locator("pre code")).to_contain_text("return s[::-1]")
        chat.replies.last.locator("summary").click()
        expect(chat.replies.last).to_contain_text("Tokens per run")
        chat.shot("firefox-details")
        chat.replies.last.get_by_role("button", name="Sources").click()
        expect(page.locator(".hc-marked")).to_be_visible()
        page.locator(".hc-run[data-said]").first.hover()
        expect(page.locator("#hc-tip")).to_be_visible()
        chat.shot("firefox-sources")
        address = page.evaluate("location.href")
        assert re.search(r"\?c=\d+$", address)
        page.locator("#hc-box textarea").fill("Not sent yet")
        page.reload()
        expect(chat.replies).to_have_count(2)
        expect(page.locator("#hc-box textarea")).to_have_value("Not sent yet")


def test_views_and_the_browsers_steps(
    fox: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    weeks(service.store, service.store.users.ensure("local"))
    stored_chat(service.store, "Trip to Oslo", 2)
    stored_chat(service.store, "SQL joins", 1)
    with visiting(fox, server[1]) as chat:
        page = chat.page
        page.get_by_role("button", name="Trip to Oslo", exact=True).click()
        expect(chat.replies).to_have_count(2)
        for title in ("Models", "Insights", "Comparisons", "Settings"):
            chat.view(title)
            expect(page.locator(f"#hc-panel-{title.lower()}")).to_be_visible()
            expect(page).to_have_url(re.compile(rf"view={title.lower()}"))
            page.wait_for_timeout(300)
            chat.shot(f"firefox-{title.lower()}")
        page.evaluate("history.back()")
        expect(page.locator("#hc-title")).to_have_text("Comparisons")
        page.evaluate("history.go(-3)")
        expect(chat.replies).to_have_count(2)
        page.evaluate("history.forward()")
        expect(page.locator("#hc-title")).to_have_text("Models")
        page.reload()
        expect(page.locator(".hc-model").first).to_be_visible()
        page.get_by_role("textbox", name="Search chats").fill("joins")
        expect(page.locator("#hc-list .hc-title")).to_have_text(["SQL joins"])
        page.locator("#hc-list .hc-title").click()
        expect(chat.replies).to_have_count(1)
        chat.shot("firefox-found")


def test_a_comparison(fox: Browser, server: tuple[FakeService, str], service: FakeService) -> None:
    service.script.seconds = 1
    with visiting(fox, server[1]) as chat:
        page = chat.page
        page.locator("#hc-compare input").check()
        expect(page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
        chat.send("Both")
        expect(page.locator("#hc-verdict")).to_contain_text("Word for word the same")
        chat.idle()
        chat.shot("firefox-comparison")
        page.locator("#hc-result").get_by_role("button", name="Replay").click()
        expect(page.locator(".hc-racing")).to_be_visible()
        expect(page.locator(".hc-racing")).to_have_count(0)


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        pytest.param("light", 1280, id="light-wide", marks=pytest.mark.large),
        pytest.param("light", 390, id="light-narrow"),
        pytest.param("dark", 1280, id="dark-wide"),
        pytest.param("dark", 390, id="dark-narrow", marks=pytest.mark.large),
    ],
)
def test_both_themes_and_widths(
    fox: Browser,
    dark_fox: Browser,
    server: tuple[FakeService, str],
    service: FakeService,
    scheme: str,
    width: int,
) -> None:
    name = f"firefox-{width}-{scheme}"
    stored_chat(service.store, "Trip to Oslo", 2)
    service.script.seconds, service.script.reply = 0, RICH
    with visiting(dark_fox if scheme == "dark" else fox, server[1], width) as chat:
        page = chat.page
        assert page.evaluate("document.body.classList.contains('dark')") is (scheme == "dark")
        chat.ask("How is a string reversed?")
        inside(chat, width)
        chat.shot(name)
        page.get_by_role("button", name="Chat settings").click()
        expect(page.locator("#hc-drawer")).to_be_visible()
        chat.shot(f"{name}-drawer")
        page.keyboard.press("Escape")
        chat.view("Settings")
        inside(chat, width)
        chat.shot(f"{name}-settings")
        if width < 768:
            page.get_by_role("button", name="List of chats").click()
        page.get_by_role("button", name="Trip to Oslo", exact=True).click()
        expect(chat.replies).to_have_count(2)
        inside(chat, width)


def inside(chat: Chat, width: int) -> None:
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= width
    if chat.page.locator("#hc-box").is_visible():
        for part in ("#hc-send", "#hc-box", "#hc-compare", "#hc-model"):
            expect(chat.page.locator(part)).to_be_in_viewport(ratio=0.99)
