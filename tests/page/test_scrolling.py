"""Following what is written, and keeping the place of whoever scrolls away, in a real browser."""

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


def test_a_long_chat_opens_at_its_end_in_parts_and_who_scrolls_up_while_it_is_written_stays_there(
    visitor: Chat, service: FakeService
) -> None:
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

    visitor.new()
    service.script.reply = LONG.replace("Paragraph", "Line")
    visitor.ask("Something long")
    service.script.reply = LONG
    service.script.hold(100)
    visitor.send("And once more")
    expect(visitor.page.locator("#hc-growing p")).not_to_have_count(0)
    at_end(visitor)
    button = visitor.page.get_by_role("button", name="To the end")
    expect(button).to_have_count(0)
    for way in ("wheel", "key"):
        wheel(visitor, -300) if way == "wheel" else visitor.box.press("PageUp")
        expect(button).to_be_visible()
        visitor.page.wait_for_timeout(300)
        place = visitor.page.locator("#hc-chat").evaluate("e => e.scrollTop")
        away = gap(visitor)
        visitor.until(lambda away=away: gap(visitor) > away)  # it goes on below
        for display in ("none", ""):  # an older answer may hide Stop, and the next one shows it again
            visitor.stop.evaluate("(e, display) => { e.style.display = display }", display)
            visitor.page.wait_for_timeout(100)
        assert visitor.page.locator("#hc-chat").evaluate("e => e.scrollTop") == pytest.approx(place, abs=1)
        button.focus()
        visitor.page.keyboard.press("Enter")
        at_end(visitor)
        expect(button).to_have_count(0)
        expect(visitor.page.locator("#hc-chat")).to_be_focused()
    before = visitor.page.locator("#hc-chat").evaluate("e => e.scrollHeight")
    visitor.page.wait_for_function(
        f"(() => document.querySelector('#hc-chat').scrollHeight > {before} + 50)()"
    )
    at_end(visitor)
    wheel(visitor, -300)
    expect(button).to_be_visible()
    for _ in range(20):  # back by hand: the end moves on while one turns the wheel
        wheel(visitor, 5000)
        visitor.page.wait_for_timeout(250)
        if not button.count():
            break
    expect(button).to_have_count(0)
    wheel(visitor, -250)
    visitor.page.wait_for_timeout(400)
    seen = visitor.page.evaluate(
        "[...document.querySelectorAll('#hc-growing p')].find((p) => p.getBoundingClientRect().top > 150).textContent"
    )
    before = top_of(visitor, seen)
    service.script.release()
    visitor.idle()
    expect(visitor.replies).to_have_count(2)
    assert top_of(visitor, seen) == pytest.approx(before, abs=2)  # the end of the reply leaves the place
