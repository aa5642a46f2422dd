"""Where a reply's words came from, in a real browser: drawn as before, told on hover and focus, and a way there."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.stored import stored_chat
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


def test_a_run_leads_to_where_it_came_from_and_asks_for_its_model(chat: Chat, service: FakeService) -> None:
    store, user = service.store, service.user
    earlier = stored_chat(store, "Strings", 6)
    origin = store.messages.path(user, earlier)[3].id  # far from the end
    service.script.origin = origin
    chat.open()
    chat.ask("Reverse it")
    chat.replies.last.get_by_role("button", name="Sources").click()
    drawn = chat.page.locator(".hc-marked").last
    run = drawn.locator(".hc-src-history[data-act]").first
    run.hover()
    expect(chat.page.locator("#hc-tip")).to_contain_text("From an earlier reply in “Strings”")
    expect(chat.page.locator("#hc-tip")).to_contain_text("Click to go there.")
    run.click()
    expect(chat.page.locator("#hc-title")).to_contain_text("Strings")
    turn = chat.page.locator(f'#hc-thread .hc-turn:has([data-message="{origin}"])')
    expect(turn).to_be_in_viewport()
    marked = chat.page.wait_for_function(
        "() => { const h = CSS.highlights.get('hc-found'); return h && [...h].map(String).join(''); }"
    ).json_value()
    assert "Python" in marked or "function" in marked
    # Back, and once more by keyboard.
    chat.page.get_by_role("button", name="Reverse it", exact=True).click()
    expect(chat.page.locator("#hc-title")).to_contain_text("Reverse it")
    run = chat.page.locator(".hc-marked .hc-src-history[data-act]").first
    run.focus()
    run.press("Enter")
    expect(chat.page.locator("#hc-title")).to_contain_text("Strings")
    # After a change of model they are a button away.
    chat.go_to("Reverse it")
    present, other = service.slot.names
    service.slot.status = SlotStatus(other, "ready")
    chat.replies.last.get_by_role("button", name="Sources").click()
    expect(chat.page.locator(".hc-marked")).to_have_count(0)
    chat.replies.last.get_by_role("button", name="Sources").click()
    notice = chat.page.locator("#hc-thread .hc-notice")
    expect(notice).to_contain_text(f"Load {present} to see where its words came from.")
    notice.get_by_role("button", name=f"Load {present}").click()
    expect(chat.page.locator(".hc-marked")).to_be_visible(timeout=driving.PATIENCE_MS)
    expect(notice).to_have_count(0)
    expect(chat.page.locator("#hc-model input")).to_have_value(present)
