"""The page in a real browser over a scripted service: the chat itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, SlotStatus

pytestmark = pytest.mark.browser


def test_empty_page_offers_examples_and_says_where_the_data_lies(chat: Chat) -> None:
    expect(chat.page.locator("#hc-empty .hc-card")).to_have_count(3)
    expect(chat.page.locator("#hc-empty")).to_contain_text("/home/you/.local/share")
    chat.shot("empty")
    chat.page.locator("#hc-empty .hc-card").first.click()
    expect(chat.replies).to_have_count(1)
    expect(chat.page.locator(".hc-user").first).to_contain_text("reverses a string")


def test_a_reply_streams_and_ends_with_its_figures(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 20
    chat.send("Write a function\n that reverses a string.")
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    expect(chat.words.last).to_contain_text("Here is")
    first = len(chat.words.last.inner_text())
    expect(chat.page.locator("#hc-live")).to_contain_text("tokens in")
    chat.page.wait_for_function(
        "n => document.querySelector('#hc-growing .hc-text').innerText.length > n", arg=first
    )
    chat.shot("writing")
    service.script.seconds = 0
    expect(chat.replies).to_have_count(1)
    chat.idle()
    foot = chat.replies.last
    expect(foot).to_contain_text("2.3\N{MULTIPLICATION SIGN} faster than without drafts")
    expect(foot).to_contain_text("the model itself 36 %")
    expect(foot).to_contain_text("this chat 31 %")
    expect(chat.words.last.locator("pre code")).to_contain_text("return s[::-1]")
    expect(chat.page.locator("#hc-context")).to_contain_text("of 8,192 tokens")
    foot.locator("summary").click()
    expect(foot).to_contain_text("Tokens per run")
    chat.shot("reply")


@pytest.mark.parametrize("phase", ["reading", "writing"])
def test_stop_works_at_once(chat: Chat, service: FakeService, phase: str) -> None:
    service.script.seconds = 60
    service.script.reading_seconds = 60 if phase == "reading" else 0
    chat.send("A long story.")
    expect(chat.page.locator("#hc-live")).to_contain_text(
        "Reading the prompt" if phase == "reading" else "tokens in"
    )
    chat.shot(f"stop-{phase}")
    chat.page.locator("#hc-stop").click()
    chat.idle()
    expect(chat.replies.last).to_contain_text("stopped")
    service.script.seconds = service.script.reading_seconds = 0
    chat.ask("Go on.")


def test_again_and_edit_make_versions_to_walk_through(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0.2
    chat.ask("First question")
    service.script.reply = "Second version."
    chat.replies.last.get_by_text("Again").click()
    expect(chat.words.last).to_contain_text("Second version.")
    expect(chat.replies.last).to_contain_text("2/2")
    chat.idle()
    chat.replies.last.get_by_label("Previous version").click()
    expect(chat.words.last).to_contain_text("Here is")
    chat.page.locator(".hc-user").first.hover()
    chat.page.locator(".hc-mine").first.get_by_text("Edit").click()
    chat.page.get_by_label("Edit your message").get_by_role("textbox").fill("Changed question")
    chat.page.get_by_role("button", name="Send edited message").click()
    expect(chat.page.locator(".hc-user")).to_have_text(["Changed question"])
    expect(chat.words.last).to_contain_text("Second version.")
    expect(chat.page.locator(".hc-mine").first).to_contain_text("2/2")
    user = service.store.users.ensure("local")
    path = service.store.messages.path(user, service.store.chats.find(user)[0].id)
    assert path[0].parent_id is None
    assert len(path[0].siblings) == 2


def test_conversations_can_be_found_renamed_deleted_and_survive_a_reload(
    chat: Chat, service: FakeService
) -> None:
    service.script.seconds = 0
    chat.ask("Trip to Oslo")
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    chat.ask("SQL joins")
    entries = chat.page.locator("#hc-list li")
    expect(entries).to_have_count(2)
    chat.page.locator("#hc-search").locator("input, textarea").fill("oslo")
    expect(entries).to_have_count(1)
    chat.page.locator("#hc-search").locator("input, textarea").fill("")
    expect(entries).to_have_count(2)
    chat.page.get_by_role("button", name="Trip to Oslo", exact=True).click()
    expect(chat.page.locator(".hc-user")).to_have_text(["Trip to Oslo"])
    expect(chat.page).to_have_url(re.compile(r"\?c=\d+"))
    chat.menu("Trip to Oslo", "Rename")
    chat.page.locator(".hc-dialog input").fill("Norway <b>")
    chat.page.locator(".hc-dialog input").press("Enter")
    expect(chat.page.locator("#hc-title")).to_contain_text("Norway <b>")
    chat.page.reload()
    expect(chat.page.locator(".hc-user")).to_have_text(["Trip to Oslo"], timeout=driving.PATIENCE_MS)
    expect(chat.page.locator("#hc-title")).to_contain_text("Norway <b>")
    expect(chat.replies.last).to_contain_text("faster than without drafts")
    chat.menu("Norway <b>", "Delete")
    expect(entries).to_have_count(1)
    expect(chat.page.locator("#hc-empty")).to_be_visible()


def test_errors_are_a_line_and_the_chat_goes_on(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0.2
    service.script.fail = "The model ran out of memory. Choose a smaller one."
    chat.send("Boom")
    error = chat.page.locator("#hc-live [role=alert]")
    expect(error).to_contain_text("ran out of memory")
    chat.idle()
    chat.shot("error")
    service.script.fail, service.script.raises = None, RuntimeError("disk <full>")
    chat.send("Again")
    expect(error).to_contain_text("Something went wrong that hierchat did not expect")
    expect(chat.page.locator("#hc-box textarea")).to_have_value("Again")
    service.script.raises = None
    chat.ask("Third")
    expect(error).to_have_count(0)


def test_a_loading_model_shows_its_progress_and_the_message_waits(chat: Chat, service: FakeService) -> None:
    service.slot.status = SlotStatus("SmolLM2 135M", "downloading", 41_000_000, 93_000_000)
    chat.open()
    expect(chat.page.locator("#hc-host")).to_contain_text("41 of 93 MB")
    service.script.seconds = 0
    chat.send("Early")
    expect(chat.page.locator("#hc-live")).to_contain_text("41 of 93 MB")
    chat.shot("loading")
    service.slot.status = SlotStatus("SmolLM2 135M", "ready")
    expect(chat.replies).to_have_count(1)
    expect(chat.page.locator("#hc-host")).not_to_contain_text("MB")


def test_choosing_a_model_loads_it_with_its_settings(chat: Chat, service: FakeService) -> None:
    chat.page.locator("#hc-model input").click()
    chat.page.get_by_role("option", name="Qwen3 0.6B").click()
    chat.until(lambda: service.slot.started == ["Qwen3 0.6B"])
    service.script.seconds = 0
    chat.ask("Hello")
    assert service.asked[-1][1].temperature == 0.7
    chat.page.get_by_role("button", name="Chat settings").click()
    expect(chat.page.get_by_label("number input for Temperature")).to_have_value("0.7")


def test_a_reply_goes_on_while_another_chat_is_open(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    chat.ask("Old chat")
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    service.script.seconds = 3
    chat.send("Slow chat")
    expect(chat.words.last).to_contain_text("Here is")
    chat.page.get_by_role("button", name="Old chat", exact=True).click()
    expect(chat.page.locator("#hc-live")).to_contain_text("Still writing in “Slow chat”")
    expect(chat.page.locator(".hc-user")).to_have_text(["Old chat"])
    chat.idle()
    expect(chat.page.locator(".hc-user")).to_have_text(["Old chat"])
    chat.page.get_by_role("button", name="Slow chat", exact=True).click()
    expect(chat.words.last).to_contain_text("combined characters")


def test_nothing_in_a_reply_can_press_buttons_or_fetch(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 0
    service.script.reply = (
        "![x](http://example.invalid/x.png) <img src='http://example.invalid/y.png'> "
        "<button data-act='hc_delete' data-id='1'>press</button>\n\n<style>body{display:none}</style>"
    )
    chat.ask("Attack")
    chat.page.wait_for_timeout(300)
    assert chat.words.last.locator("img, button[data-act], style").count() == 0
    assert chat.foreign == []
    policy = chat.page.request.get(chat.address).headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
