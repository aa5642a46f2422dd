"""Following what is written, and keeping the place of whoever scrolls away, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import REPLY, FakeService

pytestmark = pytest.mark.browser
LONG = "\n\n".join(f"Paragraph {n} of a long reply, which goes on for a while." for n in range(120))


def gap(chat: Chat, scroller: str = "#hc-chat") -> float:
    """Pixels between what is shown and the end."""
    return chat.page.locator(scroller).evaluate("e => e.scrollHeight - e.clientHeight - e.scrollTop")


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


def open_chat(chat: Chat, title: str) -> None:
    chat.page.get_by_role("button", name=title, exact=True).click()
    expect(chat.page.locator("#hc-title")).to_contain_text(title)


def write_slowly(chat: Chat, service: FakeService) -> None:
    """Below a reply that is longer than the window."""
    service.script.reply, service.script.seconds = LONG.replace("Paragraph", "Line"), 0
    chat.ask("Something long")
    service.script.reply, service.script.seconds = LONG, 40
    chat.send("And once more")
    expect(chat.page.locator("#hc-growing p")).not_to_have_count(0)
    chat.page.wait_for_function(
        "(() => { const e = document.querySelector('#hc-chat'); return e.scrollHeight > e.clientHeight + 200 })()"
    )


def wheel(chat: Chat, by: int) -> None:
    chat.page.locator("#hc-chat").hover()
    chat.page.mouse.wheel(0, by)


def drag_bar(chat: Chat) -> None:
    """As a hand on the bar does: the place changes without wheel or key."""
    chat.page.locator("#hc-chat").evaluate("e => { e.scrollTop -= 300 }")


def touch(chat: Chat) -> None:
    session = chat.page.context.new_cdp_session(chat.page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def finger(kind: str, *places: dict[str, int]) -> None:
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(places)})

    finger("touchStart", {"x": 700, "y": 200})
    for y in range(200, 500, 20):
        finger("touchMove", {"x": 700, "y": y})
        chat.page.wait_for_timeout(16)
    finger("touchEnd")


WAYS = {
    "wheel": lambda chat: wheel(chat, -300),
    "a little": lambda chat: wheel(chat, -40),
    "page up in the box": lambda chat: chat.page.locator("#hc-box textarea").press("PageUp"),
    "keys": lambda chat: (chat.page.locator("#hc-chat").focus(), chat.page.keyboard.press("PageUp")),
    "bar": drag_bar,
    "touch": touch,
}


@pytest.mark.parametrize("way", ["wheel", "page up in the box"])
def test_one_can_scroll_up_while_a_reply_is_written_and_come_back(
    chat: Chat, service: FakeService, way: str
) -> None:
    write_slowly(chat, service)
    at_end(chat)
    button = chat.page.get_by_role("button", name="To the end")
    expect(button).to_have_count(0)
    WAYS[way](chat)
    expect(button).to_be_visible()
    chat.page.wait_for_timeout(300)
    place = chat.page.locator("#hc-chat").evaluate("e => e.scrollTop")
    away = gap(chat)
    chat.until(lambda: gap(chat) > away)  # it goes on below
    assert chat.page.locator("#hc-chat").evaluate("e => e.scrollTop") == pytest.approx(place, abs=1)
    chat.shot(f"scrolled-{way.split()[0]}")
    button.focus()
    chat.page.keyboard.press("Enter")
    at_end(chat)
    expect(button).to_have_count(0)
    expect(chat.page.locator("#hc-chat")).to_be_focused()
    if way != "wheel":  # the way back is the same from all
        chat.page.locator("#hc-stop").click()
        return
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
    chat.page.locator("#hc-stop").click()


def test_the_end_of_a_reply_leaves_the_place(chat: Chat, service: FakeService) -> None:
    write_slowly(chat, service)
    expect(chat.page.locator("#hc-growing p").nth(9)).to_be_attached()
    wheel(chat, -250)
    chat.page.wait_for_timeout(400)
    seen = chat.page.evaluate(
        "[...document.querySelectorAll('#hc-growing p')].find((p) => p.getBoundingClientRect().top > 150).textContent"
    )
    before = top_of(chat, seen)
    service.script.seconds = 0
    chat.idle()
    expect(chat.replies).to_have_count(2)
    assert top_of(chat, seen) == pytest.approx(before, abs=2)


def test_a_long_chat_opens_at_its_end_whatever_was_shown_before(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Long one", 12)
    stored_chat(service.store, "Other long one", 20, REPLY + "\n\n$$\\sum_{i=1}^n i$$\n")
    stored_chat(service.store, "Short", 1, "Brief.")
    chat.open()
    for title in ("Long one", "Other long one", "Long one", "Short", "Other long one"):
        open_chat(chat, title)
        if title == "Short":
            continue
        at_end(chat)
        wheel(chat, -2000)
        expect(chat.page.get_by_role("button", name="To the end")).to_be_visible()
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    expect(chat.page.get_by_role("button", name="To the end")).to_have_count(0)
    open_chat(chat, "Long one")
    at_end(chat)
    chat.page.reload()
    expect(chat.page.locator("#hc-title")).to_contain_text("Long one", timeout=driving.PATIENCE_MS)
    at_end(chat)


def test_a_long_chat_is_drawn_in_parts(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Long", 130, "A short reply.")
    stored_chat(service.store, "Other", 1)
    chat.page.reload()
    open_chat(chat, "Long")
    turns = chat.page.locator("#hc-thread .hc-turn")
    expect(turns).to_have_count(100)
    expect(chat.page.get_by_text("Long, question 130", exact=True)).to_be_visible()
    chat.page.locator("#hc-chat").evaluate("e => { e.scrollTop = 0 }")
    before = top_of(chat, "Long, question 81")
    chat.page.get_by_role("button", name="Show earlier messages").click()
    expect(turns).to_have_count(200)
    chat.page.wait_for_timeout(300)
    assert top_of(chat, "Long, question 81") == pytest.approx(
        before, abs=60
    )  # less the button that was above
    chat.page.get_by_role("button", name="Show earlier messages").click()
    expect(turns).to_have_count(260)
    expect(chat.page.get_by_role("button", name="Show earlier messages")).to_have_count(0)
    open_chat(chat, "Other")
    open_chat(chat, "Long")
    expect(turns).to_have_count(100)
    at_end(chat)
