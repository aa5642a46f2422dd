"""A chat in a real browser: a reply from the first word to its figures, its versions, keys, models, what fails."""

import re

import pytest
from playwright.sync_api import Locator, expect

from hierchat.reasoning import join_reasoning
from tests.page.stored import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, SlotStatus
from tests.testing.visitor import Visitor


@pytest.mark.browser
def test_a_page_that_can_be_installed_and_a_reply_from_its_first_word_to_its_figures(
    chat: Chat, service: FakeService
) -> None:
    page, script = chat.page, service.script
    asked = page.context.new_cdp_session(page)
    manifest = asked.send("Page.getAppManifest")
    assert manifest["errors"] == []
    assert '"standalone"' in manifest["data"]
    errors = {one["errorId"] for one in asked.send("Page.getInstallabilityErrors")["installabilityErrors"]}
    assert errors <= {"in-incognito"}  # as the browsers of tests are
    expect(page.locator("head meta[name=theme-color]")).to_have_attribute("content", "#121215")
    expect(page.locator("#hc-empty .hc-card")).to_have_count(3)
    expect(page.locator("#hc-empty")).to_contain_text("Everything stays on this machine.")
    script.hold()
    script.reading_seconds = 600
    page.locator("#hc-empty .hc-card").first.click()
    expect(chat.questions).to_contain_text("reverses a string")
    expect(chat.live).to_contain_text("Reading the prompt")
    chat.stop.click()
    chat.idle()
    expect(chat.replies.last).to_contain_text("stopped")
    script.reading_seconds = 0
    chat.begin("Write a function\n that reverses a string.")
    first = chat.words.last.text_content() or ""
    expect(chat.words.last).not_to_have_text(first)
    chat.stop.click()
    chat.idle()
    script.release()
    chat.ask("Go on.")
    expect(chat.replies.last.locator("details")).to_have_text("Details")
    expect(chat.details().locator("dd").last).to_be_in_viewport()
    expect(chat.replies.last.locator(".hc-all-facts")).to_contain_text(
        "2.3\N{MULTIPLICATION SIGN} faster than without drafts"
    )
    expect(chat.replies.last).to_contain_text("The model itself36 %")
    expect(page.locator("#hc-context")).to_contain_text("of 8,192 tokens")
    script.finish, script.reply = "length", "One two three."
    chat.ask("Story")
    expect(chat.replies.last).to_contain_text("cut at the limit, after")
    script.finish, script.reply = "end", "Four five six."
    go_on = page.get_by_role("button", name="Continue", exact=True)
    go_on.click()
    expect(chat.words.last).to_have_text("One two three. Four five six.")
    chat.idle()
    expect(chat.replies).to_have_count(4)
    expect(go_on).to_have_count(0)


def edit_question(chat: Chat) -> Locator:
    turn = chat.page.locator(".hc-turn:has(.hc-user)").first
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    field = turn.get_by_role("textbox", name="Edit your message")
    expect(field).to_be_focused()
    return field


@pytest.mark.browser
def test_again_and_edits_make_versions_and_an_editor_outlives_updates(
    chat: Chat, service: FakeService
) -> None:
    chat.ask("One")
    chat.ask("Two")
    service.script.reply = "Second version."
    chat.replies.last.get_by_role("button", name="Again").click()
    expect(chat.words.last).to_contain_text("Second version.")
    expect(chat.replies.last).to_contain_text("2/2")
    chat.idle()
    chat.replies.last.get_by_label("Previous version").click()
    expect(chat.words.last).to_contain_text("Here is")
    service.script.hold()
    chat.send("Three")
    expect(chat.words).to_have_count(3)
    field = edit_question(chat)
    field.fill("One, but better")
    field.press("Control+Enter")
    expect(chat.page.get_by_text("A reply is being written.", exact=False).first).to_be_visible()
    field.press("Escape")  # leaves the editor; the reply goes on
    expect(field).to_have_count(0)
    field = edit_question(chat)
    field.fill("One, but better")
    field.evaluate("e => e.setSelectionRange(3, 3)")
    expect(chat.stop).to_be_visible()
    service.script.release()
    chat.idle()
    expect(chat.replies).to_have_count(3)
    chat.replies.last.get_by_role("button", name="Sources").click()  # an update of the whole conversation
    expect(chat.page.locator(".hc-marked")).to_be_visible()
    expect(field).to_have_value("One, but better")
    assert field.evaluate("e => e.selectionStart") == 3
    field.press("Control+Enter")
    expect(chat.questions).to_have_text(["One, but better"])
    expect(chat.page.locator(".hc-mine").first).to_contain_text("2/2")
    chat.idle()
    chat_id = service.store.chats.find(service.user)[0].id
    path = service.store.messages.path(service.user, chat_id)
    assert (path[0].parent_id, len(path[0].siblings)) == (None, 2)

    def edit_reply() -> Locator:
        reply = chat.page.locator("#hc-thread .hc-reply")
        reply.get_by_role("button", name="Edit").click()
        field = reply.get_by_role("textbox", name="Edit the reply")
        expect(field).to_be_focused()
        return field

    edit_reply().press("Escape")
    expect(chat.page.locator("#hc-thread form")).to_have_count(0)
    edit_reply().press("Control+Enter")  # as it was: no version
    expect(chat.replies).not_to_contain_text("1/2")
    edit_reply().fill("My **own** words,\n\n    code = 1\n")
    chat.press("Save as your version of the reply")
    expect(chat.words).to_contain_text("My own words,")
    expect(chat.replies).to_contain_text("edited by you")
    expect(chat.replies).to_contain_text("2/2")
    expect(chat.replies.get_by_role("button", name="Sources")).to_have_count(0)
    edited = service.store.messages.path(service.user, chat_id)[-1]
    assert (edited.text, edited.edited) == ("My **own** words,\n\n    code = 1\n", True)
    chat.ask("Go on")
    assert service.store.messages.path(service.user, chat_id)[1].id == edited.id
    chat.replies.first.get_by_role("button", name="Previous version").click()
    expect(chat.replies).to_have_count(1)
    expect(chat.replies).not_to_contain_text("edited by you")


@pytest.mark.browser
def test_a_run_leads_to_where_it_came_from_and_asks_for_its_model(
    visitor: Chat, service: FakeService
) -> None:
    store, user = service.store, service.user
    earlier = stored_chat(store, "Strings", 6)
    origin = store.messages.path(user, earlier)[3].id  # far from the end
    service.script.origin = origin
    visitor.open()
    visitor.ask("Reverse it")
    visitor.replies.last.get_by_role("button", name="Sources").click()
    drawn = visitor.page.locator(".hc-marked").last
    run = drawn.locator(".hc-src-history[data-act]").first
    run.hover()
    expect(visitor.page.locator("#hc-tip")).to_contain_text("From an earlier reply in “Strings”")
    expect(visitor.page.locator("#hc-tip")).to_contain_text("Click to go there.")
    run.click()
    expect(visitor.page.locator("#hc-title")).to_contain_text("Strings")
    turn = visitor.page.locator(f'#hc-thread .hc-turn:has([data-message="{origin}"])')
    expect(turn).to_be_in_viewport()
    visitor.page.wait_for_function("CSS.highlights.get('hc-found')?.size > 0")
    visitor.page.go_back()  # a step as any other
    expect(visitor.page.locator("#hc-title")).to_have_text("Reverse it")
    visitor.page.locator("#hc-thread .hc-marked").first.wait_for()
    # once more by keyboard
    run = visitor.page.locator(".hc-marked .hc-src-history[data-act]").first
    run.focus()
    run.press("Enter")
    expect(visitor.page.locator("#hc-title")).to_contain_text("Strings")
    # After a change of model they are a button away.
    visitor.go_to("Reverse it")
    present, other = service.slot.names
    service.slot.status = SlotStatus(other, "ready")
    sources = visitor.replies.last.get_by_role("button", name="Sources")
    sources.click()
    expect(visitor.page.locator(".hc-marked")).to_have_count(0)
    sources.click()
    visitor.page.locator("#hc-thread .hc-notice").get_by_role("button", name=f"Load {present}").click()
    expect(visitor.page.locator(".hc-marked")).to_be_visible(timeout=driving.PATIENCE_MS)
    expect(visitor.page.locator("#hc-model input")).to_have_value(present)


@pytest.mark.browser
def test_keys_send_once_and_stop_and_leave_what_an_input_method_writes(
    chat: Chat, service: FakeService
) -> None:
    page = chat.page
    chat.box.fill("Once")
    page.locator("#hc-send").dblclick()
    expect(chat.replies).to_have_count(1)
    chat.idle()
    chat.box.fill("Twice")
    page.evaluate(
        """() => {
            const box = document.querySelector('#hc-box textarea');
            const pressed = { key: 'Enter', bubbles: true, cancelable: true };
            const enter = () => box.dispatchEvent(new KeyboardEvent('keypress', pressed));
            enter(); document.querySelector('#hc-send').click(); enter();
        }"""
    )
    expect(chat.replies).to_have_count(2)
    chat.idle()
    chat.box.focus()
    session = page.context.new_cdp_session(page)
    session.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
    session.send("Input.dispatchKeyEvent", {"type": "keyDown", "key": "Enter", "code": "Enter", "text": "\r",
                                            "windowsVirtualKeyCode": 229})  # fmt: skip
    page.evaluate(
        """document.querySelector('#hc-box textarea').dispatchEvent(
            new KeyboardEvent('keypress', { key: 'Enter', bubbles: true, cancelable: true, isComposing: true }))"""
    )
    stored_chat(service.store, "Other", 1)
    service.changes.notify(service.user)
    service.script.hold()
    chat.begin("Endless")
    page.get_by_role("button", name="Other", exact=True).focus()
    page.keyboard.press("F2")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")  # closes the dialog
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.locator("#hc-model input").click()
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Escape")  # closes the choices
    expect(page.get_by_role("listbox")).to_have_count(0)
    expect(chat.stop).to_be_visible()
    chat.box.press("Escape")
    chat.idle()
    expect(chat.replies.last).to_contain_text("stopped")
    expect(chat.box).to_be_focused()
    assert [text for text, _ in service.asked] == ["Once", "Twice", "Endless"]


def test_a_model_that_loads_is_told_and_one_that_is_chosen_brings_its_settings(service: FakeService) -> None:
    service.slot.status = SlotStatus("SmolLM2 135M", "downloading", 41_000_000, 93_000_000)
    page = Visitor(service)
    assert "41 of 93 MB" in page.says("hc-host")
    service.slot.status = SlotStatus("SmolLM2 135M", "ready")
    page.tick()
    assert page.says("hc-host") == ""
    page.give("hc-model", "Qwen3 0.6B", "select")
    assert service.slot.started == ["Qwen3 0.6B"]
    assert page.value("Temperature") == 0.7
    service.slot.status = SlotStatus("Qwen3 0.6B", "waiting")
    page.tick()
    assert "Qwen3 0.6B is loaded as soon as" in page.says("hc-host")
    assert service.models.asked == [("load", "Qwen3 0.6B")]


def test_what_fails_is_a_line_and_the_chat_goes_on(service: FakeService) -> None:
    page = Visitor(service)
    service.script.fail = "The model ran out of memory. Choose a smaller one."
    page.ask("Boom")
    assert "ran out of memory" in page.says("hc-live")
    service.script.fail, service.script.raises = None, RuntimeError("disk <full>")
    assert page.ask("Again").endswith("Again Not answered Answer Edit Copy")
    assert "Something went wrong that hierchat did not expect" in page.says("hc-live")
    service.script.raises = None
    page.ask("Third")
    assert page.says("hc-live") == ""


@pytest.mark.browser
def test_a_thought_is_folded_and_stays_open_while_it_grows_and_a_title_comes_by_itself(
    visitor: Chat, service: FakeService
) -> None:
    visitor.open()
    thought = "The user wants a **short** greeting.\n\n- No name is known."
    # Three words a second, for minutes: however slow the machine is, it still thinks when it is looked at.
    service.script.reply = join_reasoning("\n\n".join([thought] * 40), "Good morning!")
    service.script.thought_seconds = 4.2
    service.script.hold(200)
    visitor.send("Hello")
    fold = visitor.page.locator("#hc-chat .hc-thought")
    summary = fold.locator("summary")
    expect(summary).to_have_text("Thinking…")
    expect(fold).not_to_have_attribute("open", re.compile(".*"))
    summary.focus()
    visitor.page.keyboard.press("Enter")
    expect(fold).to_contain_text("The user wants")
    before = fold.text_content() or ""
    expect(fold).not_to_have_text(before)
    service.script.release()
    visitor.idle()
    expect(summary).to_have_text("Thought for 4 seconds")
    expect(fold).to_have_attribute("open", "")
    expect(visitor.words.last).to_contain_text("Good morning!")
    (waiting,) = [one for one in service.store.chats.untitled("k", 0.0) if one.user_id == service.user]
    assert service.store.chats.title_by_model(waiting, "k", "A greeting")
    expect(visitor.titles).to_have_text(["A greeting"])
    expect(visitor.page.locator("#hc-title")).to_have_text("A greeting")


@pytest.mark.browser
def test_tab_alone_reaches_all_of_a_chat_and_escape_leads_back(visitor: Chat, service: FakeService) -> None:
    page, keys = visitor.page, visitor.page.keyboard
    visitor.open(f"?c={stored_chat(service.store, 'Story', 1)}")
    expect(visitor.box).to_be_focused()
    named = "(({ariaLabel, placeholder, textContent}) => ariaLabel || placeholder || textContent.trim())"
    named += "(document.activeElement)"
    reached = {"Message"}
    for _ in range(60):
        keys.press("Tab")
        reached.add(page.evaluate(named))
    assert reached >= {
        "Send", "List of chats", "New", "Search", "New project", "Story", "Models", "Insights",
        "Settings", "Model", "Chat settings", "Conversation", "Sources", "Again", "Edit", "Copy",
        "Fork: continue in a new chat", "Details", "Attach files",
    }  # fmt: skip
    for way, inside in (
        (page.get_by_role("button", name="Options for Story"), page.get_by_role("menu")),
        (page.get_by_role("button", name="New project"), page.get_by_role("dialog")),
        (page.get_by_role("button", name="Chat settings"), page.locator("#hc-drawer[data-open]")),
    ):
        way.focus()
        keys.press("Enter")
        expect(inside).to_be_visible()
        keys.press("Escape")
        expect(inside).to_be_hidden()
        expect(way).to_be_focused()
