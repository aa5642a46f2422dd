"""Compare, replay, themes, widths and the login, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def compare(chat: Chat, service: FakeService, seconds: float = 0.8) -> None:
    service.script.seconds = seconds
    chat.page.locator("#hc-compare input").check()
    expect(chat.page.locator("#hc-box textarea")).to_have_attribute("placeholder", "Message both…")
    chat.send("And in Rust?")


def test_compare_streams_both_judges_and_replays(chat: Chat, service: FakeService) -> None:
    compare(chat, service, seconds=60)
    second, first = chat.page.locator("#hc-second"), chat.page.locator("#hc-first")
    expect(second).to_contain_text("With drafts")
    expect(second).to_contain_text("tokens")
    expect(first).to_contain_text("Without drafts")
    expect(first).to_contain_text("Not started yet")
    chat.shot("comparing")
    service.script.seconds = 2  # of which most have passed
    expect(first).to_contain_text("tokens")
    verdict = chat.page.locator("#hc-verdict")
    expect(verdict).to_contain_text(
        "Word for word the same. “With drafts” is 2.0", timeout=driving.PATIENCE_MS
    )
    expect(verdict).to_contain_text("the same words, proved")
    chat.idle()
    chat.shot("compared")
    replay = chat.page.locator("#hc-result [data-act=hc_race]")
    counters = chat.page.locator("#hc-result .hc-race")
    # All that is shown: a slow machine may look too late for what goes by.
    chat.page.evaluate(
        """() => {
          window.seen = [];
          const look = () => seen.push([...document.querySelectorAll('#hc-result :is(.hc-race, [data-act=hc_race])')]
            .map((e) => e.textContent).join(' | '));
          new MutationObserver(look).observe(document.querySelector('#hc-result'),
            { childList: true, subtree: true, characterData: true });
        }"""
    )
    replay.click()
    expect(replay).to_have_text("Stop the replay")
    chat.shot("replay")
    expect(replay).to_have_text("Replay at true speed", timeout=driving.PATIENCE_MS)
    seen = chat.page.evaluate("seen")
    assert any("a second" in shown for shown in seen)
    # The faster one at its end, while the other still runs.
    assert any("130 tokens" in shown and "done" in shown and "Stop the replay" in shown for shown in seen)
    expect(counters.first).to_be_hidden()
    assert chat.page.locator("#hc-result .hc-side [style*=hidden]").count() == 0
    chat.page.locator("#hc-back").click()
    expect(chat.replies).to_have_count(1)
    expect(chat.page.locator("#hc-versus")).to_be_hidden()
    chat.page.locator("#hc-compare input").uncheck()
    chat.ask("And plain?")
    expect(chat.replies).to_have_count(2)


def test_compare_can_be_stopped(chat: Chat, service: FakeService) -> None:
    compare(chat, service, seconds=60)
    expect(chat.page.locator("#hc-second")).to_contain_text("tokens")
    chat.page.locator("#hc-stop").click()
    chat.idle()
    expect(chat.page.locator("#hc-back")).to_be_visible()
