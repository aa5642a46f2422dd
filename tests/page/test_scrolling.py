"""Following what is written, and keeping the place of whoever scrolls away, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

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


def resting(column: Locator) -> float:
    """Where a column of a comparison stands in the window, once it no longer moves."""
    now = column.evaluate("e => e.getBoundingClientRect().top")
    for _ in range(20):
        column.page.wait_for_timeout(200)
        before, now = now, column.evaluate("e => e.getBoundingClientRect().top")
        if now == pytest.approx(before, abs=1):
            break
    return now


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


@pytest.mark.parametrize("way", WAYS)
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
    chat.page.wait_for_timeout(600)
    assert chat.page.locator("#hc-chat").evaluate("e => e.scrollTop") == pytest.approx(place, abs=1)
    assert gap(chat) > away  # it went on below
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


def test_sending_shows_what_was_sent(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Long one", 12)
    chat.open()
    open_chat(chat, "Long one")
    at_end(chat)
    wheel(chat, -3000)
    service.script.seconds = 2
    chat.send("And now?")
    expect(chat.page.locator("#hc-chat").get_by_text("And now?", exact=True)).to_be_in_viewport()
    at_end(chat)
    chat.idle()
    at_end(chat)


def test_a_window_that_changes_keeps_the_place(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Long one", 12)
    chat.open()
    open_chat(chat, "Long one")
    at_end(chat)
    for size in ((1280, 500), (900, 800), (390, 420), (390, 844), (1280, 800)):
        chat.page.set_viewport_size({"width": size[0], "height": size[1]})
        at_end(chat)
    question = "Long one, question 6"
    chat.page.locator("#hc-chat").get_by_text(question, exact=True).evaluate(
        "e => e.scrollIntoView({ block: 'start' })"
    )
    chat.page.wait_for_timeout(200)
    before = top_of(chat, question)
    for size in ((1280, 500), (900, 800), (1280, 800)):
        chat.page.set_viewport_size({"width": size[0], "height": size[1]})
        chat.page.wait_for_timeout(200)
        assert top_of(chat, question) == pytest.approx(before, abs=3)


BOXES = """foot => {
    const parts = { foot, summary: foot.querySelector('summary'), facts: foot.querySelector('.hc-all-facts'),
        chat: document.querySelector('#hc-chat'), end: document.querySelector('#hc-end button') };
    const boxes = Object.entries(parts).map(([name, part]) => [name, part.getBoundingClientRect().toJSON()]);
    return Object.fromEntries(boxes);
}"""


def test_details_open_at_full_width_in_view_and_stay_open(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("One")
    chat.ask("Two")
    summary = chat.replies.last.locator("summary")
    before = chat.replies.last.evaluate(BOXES)
    summary.click()
    expect(chat.replies.last).to_contain_text("Tokens per run")
    chat.page.wait_for_timeout(200)
    after = chat.replies.last.evaluate(BOXES)
    assert after["summary"]["x"] == before["summary"]["x"]
    assert after["facts"]["width"] == pytest.approx(after["foot"]["width"], abs=17)
    assert after["chat"]["y"] <= after["foot"]["y"] < after["chat"]["y"] + after["chat"]["height"]
    bottom = after["chat"]["y"] + after["chat"]["height"]
    fits = after["foot"]["height"] <= after["chat"]["height"]
    assert not fits or after["foot"]["y"] + after["foot"]["height"] <= bottom + 1
    chat.shot("details")
    assert after["end"]["y"] >= bottom  # the way to the end lies over nothing
    chat.replies.first.locator("summary").click()
    service.script.seconds = 1
    chat.send("Three")
    expect(chat.words).to_have_count(3)
    assert chat.page.locator("#hc-thread details[open]").count() == 2
    chat.idle()
    expect(chat.page.locator("#hc-thread .hc-foot")).to_have_count(3)
    expect(chat.page.locator("#hc-thread details[open]")).to_have_count(2)
    chat.replies.first.locator("summary").click()  # and closed, they stay closed
    service.script.seconds = 0
    chat.ask("Four")
    expect(chat.page.locator("#hc-thread details[open]")).to_have_count(1)


@pytest.mark.parametrize(("width", "height"), [(1280, 600), (390, 844)], ids=["wide", "narrow"])
def test_compare_follows_what_is_being_written(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, width: int, height: int
) -> None:
    service.script.reply, service.script.seconds = LONG, 20  # the second first, then the other
    with driving.visiting(chromium, server[1], width, height) as chat:
        chat.open()
        chat.page.locator("#hc-compare input").check()
        expect(chat.page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
        chat.send("Both")
        column = chat.page.locator("#hc-second")
        expect(column).to_contain_text("Paragraph 30", timeout=driving.PATIENCE_MS)
        expect(column.locator(".hc-figures")).to_be_in_viewport()
        box = chat.page.locator("#hc-versus").bounding_box()
        assert box
        chat.page.mouse.move(width / 2, box["y"] + 100)
        button = chat.page.get_by_role("button", name="To the end")
        for _ in range(5):  # while the end moves on, one turns the wheel until the page stays
            chat.page.mouse.wheel(0, -400)
            chat.page.wait_for_timeout(500)
            if button.count():
                break
        expect(button).to_be_visible()
        before = resting(column)
        chat.page.wait_for_timeout(400)
        # The other column may grow above it: then the place changes and what one reads stays.
        assert resting(column) == pytest.approx(before, abs=2)
        expect(button).to_be_visible()
        button.click()
        service.script.seconds = 0.1
        chat.idle()
        # The result stands in place of the columns. Who followed them reads it from its beginning.
        expect(chat.page.locator(".hc-verdict")).to_be_in_viewport()


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


def test_a_hit_far_up_in_a_long_chat_is_shown_with_what_stands_around(
    chat: Chat, service: FakeService
) -> None:
    stored_chat(service.store, "Long", 130, "A short reply.")
    chat.page.reload()
    chat.page.locator("#hc-search input, #hc-search textarea").fill("question 20")
    expect(chat.page.locator("#hc-list .hc-snippet")).to_contain_text("question 20")
    chat.page.locator("#hc-list .hc-title", has_text="Long").click()
    thread = chat.page.locator("#hc-thread")
    expect(thread.get_by_text("Long, question 20", exact=True)).to_be_in_viewport()
    expect(thread.get_by_text("Long, question 130", exact=True)).to_have_count(0)
    chat.page.get_by_role("button", name="Go to the latest messages").click()
    expect(thread.get_by_text("Long, question 130", exact=True)).to_be_in_viewport()
    expect(thread.get_by_text("Long, question 20", exact=True)).to_have_count(0)
