"""Whoever presses faster than the server answers ends where the last press leads, in a real browser."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.chats import stored_chat
from tests.testing.browser import Chat
from tests.testing.deleting import delete_for_good
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
AT_ONCE = """names => {
    const all = [...document.querySelectorAll(".hc-title, .hc-link")];
    for (const name of names) all.find((one) => one.textContent === name).click();
}"""


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


def test_steps_back_in_a_hurry_leave_the_steps_forward(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Trip to Oslo", 2)
    chat.open()
    page = chat.page
    page.get_by_role("button", name="Trip to Oslo", exact=True).click()
    expect(chat.replies).to_have_count(2)
    views = ("Models", "Insights", "Comparisons", "Settings")
    for title in views:
        chat.view(title)
        expect(page).to_have_url(re.compile(f"view={title.lower()}$"))
    for _ in views:
        page.go_back()
    expect(page.locator("#hc-title")).to_have_text("Trip to Oslo")
    expect(chat.replies).to_have_count(2)
    for title in views:
        page.go_forward()
        expect(page.locator("#hc-title")).to_have_text(title)


def test_the_page_shows_where_it_goes_before_the_answer_comes(
    chat: Chat, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_chat(service.store, "Trip to Oslo", 1)
    chat.open()
    page, answers, messages = chat.page, threading.Event(), service.store.messages.path

    def slow(*arguments: Any) -> Any:
        answers.wait(30)
        return messages(*arguments)

    monkeypatch.setattr(service.store.messages, "path", slow)
    try:
        page.get_by_role("button", name="Trip to Oslo", exact=True).click()
        expect(page.locator("#hc-title")).to_have_attribute("data-going", "Trip to Oslo")
        expect(page.locator("#hc-list li[data-going]")).to_have_count(1)
        expect(page.locator("#hc-going")).to_be_visible()
        expect(page.locator("#hc-empty")).to_be_hidden()
    finally:
        answers.set()
    expect(chat.replies).to_have_count(1)
    expect(page.locator("#hc-going")).to_be_hidden()
    expect(page.locator("[data-going]")).to_have_count(0)
    monkeypatch.undo()


def test_an_outline_goes_also_where_the_answer_is_an_error(chat: Chat, service: FakeService) -> None:
    gone = stored_chat(service.store, "Gone", 1)
    chat.open()
    delete_for_good(service.store, service.store.users.ensure("local"), gone)
    chat.page.evaluate(AT_ONCE, ["Gone"])
    expect(chat.page.locator("#hc-live [role=alert]")).to_contain_text("was deleted")
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    expect(chat.page.locator("#hc-going")).to_be_hidden()
    chat.page.locator("#hc-live").get_by_role("button", name="Close").click()
    expect(chat.page.locator("#hc-live [role=alert]")).to_have_count(0)
