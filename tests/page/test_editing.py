"""A question is edited where it stands, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.page.chats import stored_chat
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


@pytest.mark.parametrize("way", ["Control+Enter", "Meta+Enter", "button"])
def test_an_edited_question_is_sent(chat: Chat, service: FakeService, way: str) -> None:
    service.script.seconds = 0
    words = "First <b>question</b>,\nin two lines & with a tail of words that makes it rather wide."
    chat.ask(words)
    bubble = chat.page.locator(".hc-user").bounding_box()
    field = edit(chat)
    expect(field).to_have_value(words)
    size = field.bounding_box()
    assert bubble
    assert size
    assert size["width"] == pytest.approx(bubble["width"], abs=8)
    assert size["height"] == pytest.approx(bubble["height"], abs=8)
    chat.shot("editing")
    field.fill("Changed\nquestion")
    field.press("Enter")
    expect(field).to_have_value("Changed\nquestion\n")
    if way == "button":
        chat.page.locator(".hc-turn").get_by_role("button", name="Send").click()
    else:
        field.press(way)
    expect(chat.page.locator(".hc-user")).to_have_text(["Changed\nquestion"])
    expect(field).to_have_count(0)
    chat.idle()
    expect(chat.page.locator(".hc-mine").first).to_contain_text("2/2")


def test_escape_and_cancel_leave_the_question_as_it_was(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("First")
    button = chat.page.locator(".hc-mine").first.get_by_role("button", name="Edit")
    for leave in ("Escape", "Cancel"):
        field = edit(chat)
        expect(field).to_have_value("First")
        field.fill("Something else")
        if leave == "Escape":
            field.press("Escape")
        else:
            chat.page.get_by_role("button", name="Cancel").click()
        expect(field).to_have_count(0)
        expect(button).to_be_focused()
        expect(chat.page.locator(".hc-user")).to_have_text(["First"])
    asked = len(service.asked)
    edit(chat).fill(" \n ")
    chat.page.get_by_role("textbox", name="Edit your message").press("Control+Enter")
    chat.page.wait_for_timeout(300)
    assert len(service.asked) == asked


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


def test_what_was_typed_in_an_editor_is_there_when_one_comes_back(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Other", 1)
    chat.open()
    service.script.seconds = 0
    chat.ask("Mine")
    edit(chat).fill("Mine, half rewritten")
    chat.page.get_by_role("button", name="Other", exact=True).click()
    expect(chat.page.locator(".hc-user")).to_have_text(["Other, question 1"])
    expect(chat.page.get_by_role("textbox", name="Edit your message")).to_have_count(0)
    chat.page.get_by_role("button", name="Mine", exact=True).click()
    expect(chat.page.locator(".hc-user")).to_have_text(["Mine"])
    expect(edit(chat)).to_have_value("Mine, half rewritten")
