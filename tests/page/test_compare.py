"""Compare's two configurations, both sides, and the verdict."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService
from tests.testing.visitor import Visitor


@pytest.mark.browser
def test_compare_streams_both_and_judges(chat: Chat, service: FakeService) -> None:
    page = chat.page
    service.script.hold()
    chat.compare()
    chat.send("And in Rust?")
    second, first = page.locator("#hc-second"), page.locator("#hc-first")
    expect(second).to_contain_text("tokens")
    expect(first).to_contain_text("Not started yet")
    service.script.release(2)  # of which most have passed
    expect(first).to_contain_text("tokens")
    verdict = page.locator("#hc-verdict")
    expect(verdict).to_contain_text(
        "Word for word the same. “With drafts” is 2.0", timeout=driving.PATIENCE_MS
    )
    expect(verdict).to_contain_text("the same words, proved")
    chat.idle()
    page.locator("#hc-back").click()
    expect(chat.replies).to_have_count(1)
    expect(page.locator("#hc-versus")).to_be_hidden()
    service.script.hold()
    chat.send("Both, and stopped")
    expect(second).to_contain_text("tokens")
    chat.stop.click()
    chat.idle()
    chat.compare(False)
    service.script.release()
    chat.ask("And plain?")
    expect(chat.replies).to_have_count(3)


@pytest.mark.browser
def test_two_configurations_are_chosen_and_compared(chat: Chat) -> None:
    page, against = chat.page, chat.page.locator("#hc-against")
    chat.compare()
    page.locator("#hc-setup summary").focus()
    page.keyboard.press("Enter")
    second = page.get_by_role("group", name="Second, which stays in the chat")
    second.get_by_label("Drafts").select_option("without")
    expect(against).to_have_text("Without drafts (1) vs. Without drafts (2)")
    second.get_by_label("Drafts").select_option("with")
    second.get_by_label("Model").select_option("SmolLM2 135M")
    expect(against).to_have_text("Without drafts vs. SmolLM2 135M")
    chat.send("Why is the sky blue?")
    expect(page.locator("#hc-second .hc-arm")).to_have_text("SmolLM2 135M")
    expect(page.locator("#hc-verdict")).to_contain_text("“SmolLM2 135M” is 2.0")
    chat.idle()
    chat.press("Reset")
    expect(against).to_have_text("Without drafts vs. With drafts")


def test_a_comparison_stays_until_something_else_is_shown(fresh: FakeService) -> None:
    page, other = Visitor(fresh), Visitor(fresh)
    page.give("hc-compare", True, "change")
    page.send("And in Rust?")
    shown, parts = page.says("hc-verdict"), ("hc-verdict", "hc-first-text", "hc-second-text", "hc-asked")
    assert "Word for word the same." in shown
    before = [page.html(part) for part in parts]

    def unchanged() -> bool:
        page.look()
        return page.shows["stage"] == "versus" and [page.html(part) for part in parts] == before

    other.send("Another chat")
    assert unchanged()
    fresh.chats.rename(fresh.user, int(page.place), "Rust")  # this chat is drawn anew
    assert unchanged()
    for forget in fresh.deleted_texts.screens:  # some chat was deleted: its user's pages are drawn anew
        forget({fresh.user})
    assert unchanged()
    page.press("hc_open", id=int(page.place))
    assert page.shows["stage"] == "chat"
    page.send("And in C?")
    other.press("hc_delete", id=int(page.place))
    page.look()
    assert page.shows["stage"] == "empty"
    assert not any("Rust" in str(drawn) for drawn in page.all())
