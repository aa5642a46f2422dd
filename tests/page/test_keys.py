"""Keys, focus and the places of things while a reply comes and goes, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.page.chats import stored_chat
from tests.testing import browser as driving
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


def test_escape_folds_the_list_on_a_narrow_screen(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    with driving.visiting(chromium, server[1], 390, 844) as chat:
        chat.open()
        chat.page.wait_for_timeout(600)
        toggle = chat.page.get_by_role("button", name="List of chats")
        expect(toggle).to_have_attribute("aria-expanded", "false")
        toggle.click()
        expect(toggle).to_have_attribute("aria-expanded", "true")
        chat.page.get_by_role("textbox", name="Search chats").focus()
        chat.page.keyboard.press("Escape")
        expect(toggle).to_have_attribute("aria-expanded", "false")
        expect(toggle).to_be_focused()
        expect(chat.page.get_by_role("textbox", name="Search chats")).to_have_count(0)  # folded: out of reach


def test_the_focus_is_never_lost_and_never_taken(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Other", 1)
    chat.open()
    box = chat.page.get_by_role("textbox", name="Message", exact=True)
    expect(box).to_be_focused()
    service.script.seconds = 1
    chat.send("By Enter")
    expect(chat.words).to_have_count(1)
    expect(box).to_be_focused()
    chat.idle()
    expect(box).to_be_focused()
    service.script.seconds = 60
    box.fill("By the button")
    chat.page.keyboard.press("Tab")
    expect(chat.page.locator("#hc-send")).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator("#hc-live")).to_contain_text("tokens in")
    expect(box).to_be_focused()
    chat.page.locator("#hc-stop").focus()
    chat.page.keyboard.press("Enter")
    chat.idle()
    expect(box).to_be_focused()
    service.script.seconds = 1
    chat.send("Elsewhere")
    other = chat.page.get_by_role("button", name="Other", exact=True)
    other.focus()
    chat.idle()
    chat.page.wait_for_timeout(300)
    expect(other).to_be_focused()
    chat.replies.last.get_by_role("button", name="Again").focus()
    chat.page.keyboard.press("Enter")
    chat.idle()
    assert chat.page.evaluate("document.activeElement !== document.body")


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


def test_the_box_takes_lines_and_long_texts(chat: Chat, service: FakeService) -> None:
    box = chat.page.get_by_role("textbox", name="Message", exact=True)
    box.fill("one")
    box.press("End")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    expect(box).to_have_value("one\ntwo")
    box.fill("A long line of text that was pasted.\n" * 200)  # many more are slow in Chromium itself
    chat.page.wait_for_timeout(200)
    assert box.evaluate("e => e.scrollHeight > e.clientHeight && getComputedStyle(e).overflowY !== 'hidden'")
    size = box.bounding_box()
    assert size
    assert size["height"] <= 0.41 * 800
    expect(chat.page.locator("#hc-send")).to_be_in_viewport(ratio=1)
    assert chat.page.evaluate("document.documentElement.scrollHeight") <= 800


@pytest.mark.parametrize(
    ("width", "height"),
    [
        (1280, 800),
        pytest.param(1280, 600, marks=pytest.mark.large),
        (390, 844),
        pytest.param(320, 568, marks=pytest.mark.large),
    ],
)
def test_nothing_jumps_while_a_reply_comes_and_goes(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, width: int, height: int
) -> None:
    service.script.seconds, service.script.reading_seconds = 4.0, 1.5
    service.script.notice = "A remark that stands above the figures while the reply is being written."
    with driving.visiting(chromium, server[1], width, height) as chat:
        chat.open()
        page = chat.page

        def places() -> dict[str, object]:
            boxes = {
                name: page.locator(name).bounding_box() for name in ("#hc-composer", "#hc-box", "#hc-context")
            }
            # The empty page, the chat and the comparison share one place. What is said above the box takes room of its
            # own from its lower end, so that it lies over nothing.
            stage = page.locator("#hc-empty, #hc-chat").locator("visible=true").bounding_box()
            assert stage
            del stage["height"]
            return boxes | {"stage": stage, "page": page.evaluate("document.documentElement.scrollHeight")}

        before = places()
        assert before["page"] == height
        chat.send("Question")
        live = page.locator("#hc-live")
        expect(live).to_contain_text("Reading the prompt")
        assert places() == before
        expect(live).to_contain_text("tokens")
        assert places() == before
        chat.idle()
        expect(chat.replies).to_have_count(1)
        assert places() == before
        service.script.seconds, service.script.fail = 0.2, "The model ran out of memory. " * 30
        chat.send("Boom")
        expect(live.get_by_role("alert")).to_be_visible()
        chat.idle()
        assert places() == before
        text = live.get_by_role("alert").bounding_box()
        assert text
        assert text["x"] >= 0
        assert text["x"] + text["width"] <= width
        chat.shot(f"error-{width}x{height}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
