"""What a screen reader, a keyboard and weak eyes need, in a real browser."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.page.chats import stored_chat
from tests.page.test_rendering import PLAN
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
