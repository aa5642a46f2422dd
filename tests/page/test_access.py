"""What a screen reader, a keyboard and weak eyes need, in a real browser."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.page.chats import stored_chat
from tests.page.test_rendering import PLAN
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
CONTROLS = {
    "button", "textbox", "searchbox", "combobox", "checkbox", "switch", "slider", "spinbutton", "listbox", "link",
    "menu", "tab", "progressbar", "DisclosureTriangle", "dialog", "alertdialog", "region", "form", "article",
    "navigation", "complementary", "image",
}  # fmt: skip
SHARED = {
    "Copy",
    "Edit",
    "Again",
    "Sources",
    "Details",
    "Fork: continue in a new chat",
    "You",
    "Reply",
    "Where the words came from",
}
"""Names that stand once in every message, told apart by it."""

AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")


def tree(chat: Chat) -> list[tuple[str, str, dict[str, Any]]]:
    """Role, name and properties of everything that a screen reader meets."""
    session = chat.page.context.new_cdp_session(chat.page)
    found = []
    for node in session.send("Accessibility.getFullAXTree")["nodes"]:
        if not node.get("ignored"):
            properties = {p["name"]: p["value"].get("value") for p in node.get("properties", [])}
            name = str(node.get("name", {}).get("value", "")).strip()
            found.append((str(node["role"]["value"]), name, properties))
    return found


def well_named(chat: Chat) -> None:
    named = [(role, name) for role, name, _ in tree(chat) if role in CONTROLS]
    assert [entry for entry in named if not entry[1]] == []
    twice = {entry for entry, times in Counter(named).items() if times > 1 and entry[1] not in SHARED}
    assert twice == set()


def in_order(chat: Chat) -> list[int]:
    """Levels of the headings of the main part; none is skipped on the way down."""
    levels = chat.page.locator("#hc-main").evaluate(
        "e => [...e.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter((h) => h.checkVisibility())"
        ".map((h) => Number(h.getAttribute('aria-level') || h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    return levels


def test_every_control_has_a_name_of_its_own(chat: Chat, service: FakeService) -> None:
    service.script.plan = PLAN
    stored_chat(service.store, "Other", 2)
    chat.open()
    well_named(chat)
    roles = Counter(role for role, _, _ in tree(chat))
    assert roles["main"] == 1
    assert roles["navigation"] == 2  # the chats, the views
    assert roles["complementary"] == 1
    service.script.seconds = 0
    chat.ask("Question")
    chat.ask("Another one")
    chat.page.get_by_role("button", name="Chat settings").click()
    chat.replies.last.locator("summary").click()
    well_named(chat)
    chat.page.locator(".hc-turn").first.hover()
    chat.page.locator(".hc-turn").first.get_by_role("button", name="Edit").click()
    well_named(chat)
    chat.page.keyboard.press("Escape")
    chat.page.locator("#hc-compare input").check()
    expect(chat.page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
    chat.send("Both")
    expect(chat.page.locator("#hc-verdict")).to_contain_text("Word for word the same")
    chat.idle()
    well_named(chat)


def test_a_reply_is_told_once(chat: Chat, service: FakeService) -> None:
    service.script.seconds, service.script.reading_seconds = 2, 0.5
    chat.page.evaluate(
        """() => {
            window.told = [];
            const live = '[role=status], [role=alert], [role=log], [aria-live=polite], [aria-live=assertive]';
            new MutationObserver((records) => {
                for (const record of records) {
                    const node = record.target.nodeType === 1 ? record.target : record.target.parentElement;
                    const within = (n) => n.matches?.(live) || n.querySelector?.(live);
                    const region = node?.closest(live) || [...record.addedNodes].find(within);
                    if (region && region.textContent.trim()) window.told.push(region.textContent.trim());
                }
            }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }"""
    )
    chat.send("Question")
    chat.idle()
    expect(chat.page.locator("#hc-said")).to_contain_text("handle combined characters too.")
    told = chat.page.evaluate("window.told")
    assert len([said for said in told if "Here is a Python function" in said]) == 1
    assert "A reply is being written." in told
    assert len(told) <= 5  # with the waits; not one for every step
    assert not any("tok/s" in said or "1,200 tokens" in said for said in told)


@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [
        pytest.param(1280, 800, False, id="wide-light", marks=pytest.mark.large),
        pytest.param(1280, 800, True, id="wide-dark", marks=pytest.mark.large),
        pytest.param(390, 844, False, id="narrow-light", marks=pytest.mark.large),
        pytest.param(390, 844, True, id="narrow-dark", marks=pytest.mark.large),
    ],
)
def test_contrast_and_targets(
    chromium: Browser,
    server: tuple[FakeService, str],
    service: FakeService,
    dark: bool,
    width: int,
    height: int,
) -> None:
    service.script.plan = PLAN
    name = f"{'dark' if dark else 'light'}-{width}"
    stored_chat(service.store, "Other", 2)
    with driving.visiting(chromium, server[1], width, height, dark) as chat:
        page = chat.page

        def good() -> None:
            page.wait_for_timeout(400)  # colours fade in
            page.evaluate(AUDIT)
            assert page.evaluate("audit.poor()") == []
            assert page.evaluate("audit.small()") == []

        chat.open()
        good()
        service.script.seconds = 0
        chat.ask("Question with a list, a [link](https://example.org), `code` and > quotes")
        chat.replies.last.locator("summary").click()
        chat.page.locator(".hc-turn").first.hover()
        good()
        chat.replies.last.get_by_role("button", name="Sources").click()
        expect(page.locator(".hc-marked")).to_be_visible()
        good()
        chat.page.locator(".hc-turn").first.hover()
        chat.page.locator(".hc-turn").first.get_by_role("button", name="Edit").click()
        chat.shot(f"editing-{name}")
        good()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Chat settings").click()
        good()
        page.keyboard.press("Escape")
        if width < 768:
            page.get_by_role("button", name="List of chats").click()
            page.wait_for_timeout(400)
        good()
        page.get_by_role("textbox", name="Search chats").fill("question")
        expect(page.locator(".hc-snippet").first).to_be_visible()
        page.locator("#hc-list li").first.hover()
        good()
        page.locator("#hc-list .hc-title").first.focus()
        page.keyboard.press("F2")
        chat.shot(f"dialog-{name}")
        good()
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.get_by_role("menu")).to_be_visible()
        chat.shot(f"menu-{name}")
        good()
        page.get_by_role("menuitem", name="Delete").click()
        expect(page.locator(".hc-undo")).to_be_visible()
        chat.shot(f"undo-{name}")
        good()
        page.get_by_role("button", name="Keyboard shortcuts").click()
        chat.shot(f"shortcuts-{name}")
        good()
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        service.script.fail = "The model ran out of memory."
        chat.send("Boom")
        expect(page.locator("#hc-live [role=alert]")).to_be_visible()
        chat.idle()
        good()
        service.script.fail = None
        page.locator("#hc-compare input").check()
        expect(page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
        page.locator("#hc-setup summary").click()
        good()
        chat.send("Both")
        expect(page.locator("#hc-verdict")).to_contain_text("Word for word the same")
        chat.idle()
        good()
        page.locator("#hc-result [data-act=hc_picture]").click()
        good()
        page.keyboard.press("Escape")
        page.locator("#hc-result [data-act=hc_panel]").click()
        expect(page.locator(".hc-results li")).to_have_count(1)
        good()


def test_motion_only_for_those_who_like_it(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(server[1])
    expect(page.locator("#hc-list nav")).to_be_visible(timeout=driving.PATIENCE_MS)
    moving = page.evaluate(
        "[...document.querySelectorAll('body *')].filter((e) => { const s = getComputedStyle(e);"
        " return parseFloat(s.transitionDuration) > 0 || s.animationName !== 'none' }).map((e) => e.className)"
    )
    context.close()
    assert moving == []


@pytest.mark.large
@pytest.mark.parametrize(("width", "height"), [(320, 568), (640, 400)], ids=["320", "1280x800 at 200 %"])
def test_small_windows_and_unusual_texts_stay_inside(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, width: int, height: int
) -> None:
    titles = ("W" * 400, "محادثة عن الطقس في أوسلو", "A very long title that goes on " * 3)
    for title in titles:
        stored_chat(service.store, title, 1, "x" * 3000)
    service.script.seconds = 0
    service.script.reply = (
        "\n".join(f"{'  ' * level}- level {level}" for level in range(40)) + "\n\n" + "y" * 2000
    )
    with driving.visiting(chromium, server[1], width, height) as chat:
        page = chat.page
        chat.open()
        page.wait_for_timeout(600)

        def inside() -> None:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for part in ("#hc-chat", "#hc-list", "#hc-main"):
                if page.locator(part).is_visible():
                    assert page.locator(part).evaluate("e => e.scrollWidth - e.clientWidth") <= 0, part
            for part in ("#hc-send", "#hc-box", "#hc-compare", "#hc-model"):
                expect(page.locator(part)).to_be_in_viewport(ratio=0.99)

        chat.ask("A question about " + "z" * 500)
        inside()
        chat.shot(f"small-{width}")
        page.get_by_role("button", name="List of chats").click()
        page.wait_for_timeout(400)
        assert page.locator("#hc-list").evaluate("e => e.scrollWidth - e.clientWidth") <= 0
        chat.shot(f"small-list-{width}")
        arabic = page.locator("#hc-list .hc-title", has_text="أوسلو")
        assert arabic.evaluate("e => getComputedStyle(e).direction") == "rtl"
        page.locator("#hc-list .hc-title", has_text="WWW").click()
        expect(page.locator("#hc-title")).to_contain_text("WWW")
        page.wait_for_timeout(400)
        inside()
