"""Where a reply's words came from, in a real browser: drawn as before, told on hover and focus, and a way there."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.deleting import delete_for_good
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


def copied(words: Locator) -> str:
    """What selecting all of it and copying gives."""
    return words.evaluate(
        """(e) => {
          const selection = window.getSelection();
          selection.selectAllChildren(e);
          const text = selection.toString();
          selection.removeAllRanges();
          return text;
        }"""
    )


def test_the_reply_is_drawn_and_copied_as_before(chat: Chat, service: FakeService) -> None:
    service.script.reply, service.script.seconds = RICH, 0
    chat.ask("Question")
    plain = chat.words.last
    before = plain.evaluate("e => [e.textContent, e.offsetHeight]"), copied(plain)
    drawn = show_sources(chat)
    assert drawn.evaluate("e => [e.textContent, e.offsetHeight]") == before[0]
    assert copied(drawn) == before[1]
    for element in (
        "strong",
        "pre code .hc-keyword",
        "table td",
        "blockquote",
        "a[href]",
        "math",
        ".hc-task",
    ):
        expect(drawn.locator(element).first).to_be_visible()
    legend = chat.page.locator(".hc-legend")
    for name in (
        "this chat",
        "your earlier chats",
        "phrases and files",
        "draft model SmolLM2 tiny",
        "the model itself",
    ):
        expect(legend).to_contain_text(name)
    chat.replies.last.get_by_role("button", name="Sources").click()
    expect(drawn).to_have_count(0)


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


def test_a_run_tells_of_itself_on_hover_and_focus(chat: Chat, service: FakeService) -> None:
    service.script.reply, service.script.seconds = RICH, 0
    chat.ask("Question")
    drawn = show_sources(chat)
    tip = chat.page.locator("#hc-tip")
    drawn.locator(".hc-src-context").first.hover()
    expect(tip).to_have_text(
        "From this chat, earlier in the conversation. The 3 tokens before it are the same there. "
        "Each token was expected to be right with a chance of 50 %."
    )
    chat.page.mouse.move(2, 2)
    expect(tip).to_be_hidden()
    stops = drawn.locator(".hc-run[tabindex='0']")
    expect(stops).to_have_count(1)
    chat.page.keyboard.press("Tab")  # so that the focus counts as the keyboard's
    stops.focus()
    expect(tip).to_contain_text("From this chat")
    chat.page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("From your earlier chats")
    expect(stops).to_have_attribute("data-run", "1")
    assert stops.get_attribute("aria-description")
    chat.page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    chat.page.keyboard.press("End")
    expect(tip).to_be_visible()
    chat.page.keyboard.press("Home")
    expect(stops).to_have_attribute("data-run", "0")


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


def test_what_is_selected_goes_nowhere_and_what_was_deleted_says_so(chat: Chat, service: FakeService) -> None:
    store = service.store
    user = store.users.ensure("local")
    earlier = stored_chat(store, "Strings", 1)
    service.script.origin, service.script.seconds = store.messages.path(user, earlier)[1].id, 0
    chat.open()
    chat.ask("Reverse it")
    run = show_sources(chat).locator(".hc-src-history[data-act]").first
    run.evaluate("e => window.getSelection().selectAllChildren(e)")
    run.dispatch_event("click")
    chat.page.wait_for_timeout(300)
    expect(chat.page.locator("#hc-title")).to_contain_text("Reverse it")
    delete_for_good(store, user, earlier)
    chat.open(f"?c={store.chats.find(user)[0].id}")
    run = show_sources(chat).locator(".hc-src-history").first
    run.hover()
    expect(chat.page.locator("#hc-tip")).to_contain_text("in a chat that was deleted meanwhile")
    assert run.get_attribute("data-act") is None


def test_a_model_cannot_make_a_run(chat: Chat, service: FakeService) -> None:
    service.script.reply = (
        '<span class="hc-run" data-said="me" data-run="0" data-act="hc_origin">x</span>\n\n'
        '[a](b "data-said=x")'
    )
    service.script.seconds = 0
    chat.ask("Question")
    expect(chat.words.last.locator("[data-said], .hc-run")).to_have_count(0)


def test_the_line_tells_its_baseline_and_opens_the_details(chat: Chat, service: FakeService) -> None:
    service.script.reply, service.script.seconds = REPLY * 3, 0.2
    chat.ask("Question")
    speedup = chat.replies.last.locator(".hc-speedup")
    tip = chat.page.locator("#hc-tip")
    speedup.hover()
    expect(tip).to_contain_text("without drafts this model writes 26.4, measured during this reply")
    chat.page.mouse.move(2, 2)
    expect(tip).to_be_hidden()
    chat.page.keyboard.press("Tab")
    speedup.focus()
    expect(tip).to_be_visible()
    details = chat.replies.last.locator(".hc-details")
    chat.replies.last.locator(".hc-figure").nth(1).click()
    expect(details).to_have_attribute("open", "")
    for name in ("Tokens per run (T)", "Reading the prompt", "Seed", "Draft models", "Sampling"):
        expect(details).to_contain_text(name)
    chat.replies.last.locator(".hc-figure").nth(1).click()
    expect(details).not_to_have_attribute("open", "")


@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (390, 844, True)])
def test_pictures(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, width: int, height: int, dark: bool
) -> None:  # fmt: skip
    service.script.reply, service.script.seconds = RICH, 0.2
    name = f"{'dark' if dark else 'light'}-{width}"
    with driving.visiting(chromium, server[1], width, height, dark) as chat:
        chat.open()
        chat.ask("Question")
        drawn = show_sources(chat)
        drawn.locator(".hc-src-history").nth(1).hover()
        tip = chat.page.locator("#hc-tip").bounding_box()
        assert tip is not None
        assert tip["x"] >= 0
        assert tip["x"] + tip["width"] <= width
        chat.shot(f"sources-{name}")
        chat.page.mouse.move(2, 2)
        chat.replies.last.locator("summary").click()
        chat.replies.last.locator(".hc-facts").last.scroll_into_view_if_needed()
        chat.shot(f"details-{name}")
        assert chat.page.evaluate("document.documentElement.scrollWidth") <= width
