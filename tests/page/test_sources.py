"""Where a reply's words came from, in a real browser: drawn as before, told on hover and focus, and a way there."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import REPLY, FakeService, SlotStatus

pytestmark = pytest.mark.browser

RICH = (
    REPLY
    + """
| Method | Speed |
|:-------|------:|
| slice  | fast  |
| loop   | slow, see [the manual](https://docs.example/a/b) |

> Quoted, with $x^2$ and ~~no~~ `code`.

- [x] done
- open
"""
)


def show_sources(chat: Chat) -> Locator:
    chat.replies.last.get_by_role("button", name="Sources").click()
    shown = chat.page.locator(".hc-marked").last
    expect(shown).to_be_visible()
    return shown


def test_sources_after_a_change_of_model_are_a_button_away(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("Question")
    present, other = service.slot.names
    service.slot.status = SlotStatus(other, "ready")
    chat.replies.last.get_by_role("button", name="Sources").click()
    said = chat.page.locator("#hc-thread .hc-notice")
    expect(said).to_contain_text(f"Load {present} to see where its words came from.")
    chat.shot("sources-load")
    said.get_by_role("button", name=f"Load {present}").click()
    expect(chat.page.locator(".hc-marked")).to_be_visible(timeout=driving.PATIENCE_MS)
    expect(said).to_have_count(0)
    expect(chat.page.locator("#hc-model input")).to_have_value(present)


def test_a_click_goes_to_the_reply_that_it_came_from(chat: Chat, service: FakeService) -> None:
    store = service.store
    user = store.users.ensure("local")
    earlier = stored_chat(store, "Strings", 6)
    origin = store.messages.path(user, earlier)[3].id  # far from the end
    service.script.origin, service.script.seconds = origin, 0
    chat.open()
    chat.ask("Reverse it")
    drawn = show_sources(chat)
    run = drawn.locator(".hc-src-history[data-act]").first
    run.hover()
    expect(chat.page.locator("#hc-tip")).to_contain_text("From an earlier reply in “Strings”")
    expect(chat.page.locator("#hc-tip")).to_contain_text("Click to go there.")
    chat.shot("sources-origin")
    run.click()
    expect(chat.page.locator("#hc-title")).to_contain_text("Strings")
    turn = chat.page.locator(f'#hc-thread .hc-turn:has([data-message="{origin}"])')
    expect(turn).to_be_in_viewport()
    marked = chat.page.wait_for_function(
        "() => { const h = CSS.highlights.get('hc-found'); return h && [...h].map(String).join(''); }"
    ).json_value()
    assert "Python" in marked or "function" in marked
    chat.shot("sources-arrived")
    # Back, and once more by keyboard.
    chat.page.get_by_role("button", name="Reverse it", exact=True).click()
    expect(chat.page.locator("#hc-title")).to_contain_text("Reverse it")
    run = chat.page.locator(".hc-marked .hc-src-history[data-act]").first
    run.focus()
    run.press("Enter")
    expect(chat.page.locator("#hc-title")).to_contain_text("Strings")


def test_a_model_cannot_make_a_run(chat: Chat, service: FakeService) -> None:
    service.script.reply = (
        '<span class="hc-run" data-said="me" data-run="0" data-act="hc_origin">x</span>\n\n'
        '[a](b "data-said=x")'
    )
    service.script.seconds = 0
    chat.ask("Question")
    expect(chat.words.last.locator("[data-said], .hc-run")).to_have_count(0)
