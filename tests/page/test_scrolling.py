"""Following what is written, and keeping the place of whoever scrolls away, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import REPLY, FakeService

pytestmark = pytest.mark.browser
LONG = "\n\n".join(f"Paragraph {n} of a long reply, which goes on for a while." for n in range(120))


def gap(chat: Chat) -> float:
    """Pixels between what is shown and the end."""
    return chat.page.locator("#hc-chat").evaluate("e => e.scrollHeight - e.clientHeight - e.scrollTop")


def top_of(chat: Chat, text: str) -> float:
    """Where a text stands in the window."""
    box = chat.page.locator("#hc-chat").get_by_text(text, exact=True).first.bounding_box()
    assert box
    return box["y"]


def at_end(chat: Chat) -> None:
    chat.page.wait_for_function(
        "(() => { const e = document.querySelector('#hc-chat');"
        " return e.scrollHeight > e.clientHeight + 200 && e.scrollHeight - e.clientHeight - e.scrollTop <= 1 })()"
    )


def wheel(chat: Chat, by: int) -> None:
    chat.page.locator("#hc-chat").hover()
    chat.page.mouse.wheel(0, by)


def test_one_can_scroll_up_while_a_reply_is_written_and_come_back(chat: Chat, service: FakeService) -> None:
    service.script.reply = LONG.replace("Paragraph", "Line")
    chat.ask("Something long")
    service.script.reply = LONG
    service.script.hold(100)
    chat.send("And once more")
    expect(chat.page.locator("#hc-growing p")).not_to_have_count(0)
    at_end(chat)
    button = chat.page.get_by_role("button", name="To the end")
    expect(button).to_have_count(0)
    for way in ("wheel", "key"):
        wheel(chat, -300) if way == "wheel" else chat.box.press("PageUp")
        expect(button).to_be_visible()
        chat.page.wait_for_timeout(300)
        place = chat.page.locator("#hc-chat").evaluate("e => e.scrollTop")
        away = gap(chat)
        chat.until(lambda away=away: gap(chat) > away)  # it goes on below
        assert chat.page.locator("#hc-chat").evaluate("e => e.scrollTop") == pytest.approx(place, abs=1)
        button.focus()
        chat.page.keyboard.press("Enter")
        at_end(chat)
        expect(button).to_have_count(0)
        expect(chat.page.locator("#hc-chat")).to_be_focused()
    before = chat.page.locator("#hc-chat").evaluate("e => e.scrollHeight")
    chat.page.wait_for_function(f"(() => document.querySelector('#hc-chat').scrollHeight > {before} + 50)()")
    at_end(chat)
    wheel(chat, -300)
    expect(button).to_be_visible()
    for _ in range(20):  # back by hand: the end moves on while one turns the wheel
        wheel(chat, 5000)
        chat.page.wait_for_timeout(250)
        if not button.count():
            break
    expect(button).to_have_count(0)
    wheel(chat, -250)
    chat.page.wait_for_timeout(400)
    seen = chat.page.evaluate(
        "[...document.querySelectorAll('#hc-growing p')].find((p) => p.getBoundingClientRect().top > 150).textContent"
    )
    before = top_of(chat, seen)
    service.script.release()
    chat.idle()
    expect(chat.replies).to_have_count(2)
    assert top_of(chat, seen) == pytest.approx(before, abs=2)  # the end of the reply leaves the place


def test_a_long_chat_opens_at_its_end_and_is_drawn_in_parts(visitor: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Long one", 12)
    stored_chat(service.store, "Other long one", 20, REPLY + "\n\n$$\\sum_{i=1}^n i$$\n")
    stored_chat(service.store, "Short", 1, "Brief.")
    stored_chat(service.store, "Endless", 70, "A short reply.")
    visitor.open()
    for title in ("Long one", "Other long one", "Short", "Other long one"):
        visitor.go_to(title)
        if title != "Short":
            at_end(visitor)
            wheel(visitor, -2000)
            expect(visitor.page.get_by_role("button", name="To the end")).to_be_visible()
    visitor.page.reload()
    expect(visitor.page.locator("#hc-title")).to_contain_text("Other long one", timeout=driving.PATIENCE_MS)
    at_end(visitor)
    visitor.new()
    expect(visitor.page.get_by_role("button", name="To the end")).to_have_count(0)
    visitor.go_to("Endless")
    turns = visitor.page.locator("#hc-thread .hc-turn")
    earlier = visitor.page.get_by_role("button", name="Show earlier messages")
    expect(turns).to_have_count(100)
    expect(visitor.page.get_by_text("Endless, question 70", exact=True)).to_be_visible()
    visitor.page.locator("#hc-chat").evaluate("e => { e.scrollTop = 0 }")
    before = top_of(visitor, "Endless, question 21")
    earlier.click()
    expect(turns).to_have_count(140)
    visitor.page.wait_for_timeout(300)
    # Less the button that was above.
    assert top_of(visitor, "Endless, question 21") == pytest.approx(before, abs=60)
    expect(earlier).to_have_count(0)
    visitor.go_to("Short")
    visitor.go_to("Endless")
    expect(turns).to_have_count(100)
    at_end(visitor)
