"""A question is edited where it stands, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def edit(chat: Chat, place: int = 0) -> Locator:
    """Opens the editor of a question."""
    turn = chat.page.locator(".hc-turn:has(.hc-user)").nth(place)
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    field = turn.get_by_role("textbox", name="Edit your message")
    expect(field).to_be_focused()
    return field


def test_an_editor_outlives_updates_and_waits_for_the_reply(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("One")
    chat.ask("Two")
    service.script.seconds = 60
    chat.send("Three")
    expect(chat.words).to_have_count(3)
    field = edit(chat)
    field.fill("One, but better")
    field.press("Control+Enter")
    expect(chat.page.get_by_text("A reply is being written.", exact=False).first).to_be_visible()
    field.press("Escape")  # leaves the editor; the reply goes on
    expect(field).to_have_count(0)
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    field = edit(chat)
    field.fill("One, but better")
    field.evaluate("e => e.setSelectionRange(3, 3)")
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    service.script.seconds = 0
    chat.idle()
    expect(chat.replies).to_have_count(3)
    chat.replies.last.get_by_role("button", name="Sources").click()  # an update of the whole conversation
    expect(chat.page.locator(".hc-marked")).to_be_visible()
    expect(field).to_have_value("One, but better")
    assert field.evaluate("e => e.selectionStart") == 3
    field.press("Control+Enter")
    expect(chat.page.locator(".hc-user")).to_have_text(["One, but better"])
    chat.idle()
