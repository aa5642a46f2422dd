"""The main way through the page in Firefox as distributions ship it, at night: a reply, its sources, a reload."""

import re

import pytest
from playwright.sync_api import expect

from tests.page.stored import RICH
from tests.testing import browser as driving
from tests.testing.fake_service import FakeService
from tests.testing.firefox import firefox_browser

pytestmark = [pytest.mark.browser, pytest.mark.large]


def test_a_chat_from_the_question_to_its_reload(
    server: tuple[FakeService, str], service: FakeService
) -> None:
    """The console may say nothing, and the network nothing but the page."""
    said: list[str] = []
    with firefox_browser() as fox, driving.visiting(fox, server[1]) as chat:
        chat.page.on(
            "console", lambda message: said.append(message.text) if message.type == "error" else None
        )
        chat.page.on("pageerror", lambda error: said.append(str(error)))
        chat.open()
        page = chat.page
        service.script.reply = RICH
        service.script.hold()
        chat.begin("How is a string reversed?")
        chat.stop.click()
        chat.idle()
        expect(chat.replies.last).to_contain_text("stopped")
        service.script.release()
        chat.ask("And now?")
        expect(chat.words.last.locator("pre code")).to_contain_text("return s[::-1]")
        chat.replies.last.get_by_role("button", name="Sources").click()
        page.locator(".hc-run[data-said]").first.hover()
        expect(page.locator("#hc-tip")).to_be_visible()
        expect(page).to_have_url(re.compile(r"\?c=\d+$"))
        chat.box.fill("Not sent yet")
        page.reload()
        expect(chat.replies).to_have_count(2)
        expect(chat.box).to_have_value("Not sent yet")
        assert said == chat.foreign == []
