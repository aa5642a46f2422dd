"""Whoever presses faster than the server answers ends where the last press leads, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.chats import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
AT_ONCE = """names => {
    const all = [...document.querySelectorAll(".hc-title, .hc-link")];
    for (const name of names) all.find((one) => one.textContent === name).click();
}"""


@pytest.mark.unsteady(
    seen="once in a whole run: Back from Settings led to Insights, which was clicked in passing"
)
def test_the_last_of_several_clicks_counts(chat: Chat, service: FakeService) -> None:
    numbers = {title: stored_chat(service.store, title, 1) for title in ("One", "Two", "Three")}
    chat.open()
    page = chat.page
    page.evaluate(AT_ONCE, ["One", "Two", "Three"])
    expect(page.locator("#hc-title")).to_have_text("Three")
    expect(page).to_have_url(re.compile(rf"\?c={numbers['Three']}$"))
    page.evaluate(AT_ONCE, ["Models", "Insights", "One", "Settings"])
    expect(page.locator("#hc-title")).to_have_text("Settings")
    expect(page).to_have_url(re.compile(r"\?view=settings$"))
    page.go_back()
    expect(page.locator("#hc-title")).to_have_text("Three")
