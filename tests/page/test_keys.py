"""Keys, focus and the places of things while a reply comes and goes, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.chats import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def test_escape_stops_the_reply_and_only_that(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Other", 1)
    service.script.seconds = 60
    chat.open()
    chat.send("Endless")
    expect(chat.page.locator("#hc-live")).to_contain_text("tokens in")
    chat.page.get_by_role("button", name="Other", exact=True).focus()
    chat.page.keyboard.press("F2")
    chat.page.keyboard.press("Escape")  # closes the dialog
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    chat.page.locator("#hc-model input").click()
    expect(chat.page.get_by_role("listbox")).to_be_visible()
    chat.page.keyboard.press("Escape")  # closes the choices
    chat.page.wait_for_timeout(400)
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    chat.page.locator("#hc-box textarea").press("Escape")
    chat.idle()
    expect(chat.replies.last).to_contain_text("stopped")
    expect(chat.page.locator("#hc-box textarea")).to_be_focused()


def test_one_press_too_many_sends_one_message(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.page.locator("#hc-box textarea").fill("Once")
    chat.page.locator("#hc-send").dblclick()
    chat.page.wait_for_timeout(300)
    chat.idle()
    chat.page.locator("#hc-box textarea").fill("Twice")
    chat.page.evaluate(
        """() => {
            const box = document.querySelector('#hc-box textarea');
            const pressed = { key: 'Enter', bubbles: true, cancelable: true };
            const enter = () => box.dispatchEvent(new KeyboardEvent('keypress', pressed));
            enter(); document.querySelector('#hc-send').click(); enter();
        }"""
    )
    expect(chat.replies).to_have_count(2)
    chat.idle()
    chat.page.wait_for_timeout(300)
    assert [text for text, _ in service.asked][-2:] == ["Once", "Twice"]
    expect(chat.page.locator(".hc-user")).to_have_text(["Once", "Twice"])
    expect(chat.page.locator("#hc-live")).to_have_text("")


def test_enter_of_an_input_method_does_not_send(chat: Chat, service: FakeService) -> None:
    asked = len(service.asked)
    box = chat.page.get_by_role("textbox", name="Message", exact=True)
    box.focus()
    session = chat.page.context.new_cdp_session(chat.page)
    session.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
    session.send("Input.dispatchKeyEvent", {"type": "keyDown", "key": "Enter", "code": "Enter", "text": "\r",
                                            "windowsVirtualKeyCode": 229})  # fmt: skip
    chat.page.evaluate(
        """document.querySelector('#hc-box textarea').dispatchEvent(
            new KeyboardEvent('keypress', { key: 'Enter', bubbles: true, cancelable: true, isComposing: true }))"""
    )
    chat.page.wait_for_timeout(400)
    assert len(service.asked) == asked
    expect(chat.page.locator("#hc-stop")).to_be_hidden()
