"""The main way through the page in Firefox: a reply, its sources and details, every view, the search; dark and narrow.
Playwright drives a Firefox as distributions ship it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, expect

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
