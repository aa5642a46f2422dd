"""Replies that outlive their page, and several pages of one user, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.testing.browser import PATIENCE_MS, Chat
from tests.testing.fake_service import FakeService, Script, SlotStatus


def begin(chat: Chat, service: FakeService, text: str = "Long story") -> None:
    """A reply that grows for a minute, unless a test changes its mind."""
    service.script.hold()
    chat.begin(text)
    expect(chat.page).to_have_url(re.compile(r"\?c=\d+"))


def path(chat: Chat) -> str:
    return "?" + chat.page.url.partition("?")[2]


def grows(chat: Chat) -> None:
    expect(chat.live).to_contain_text("tokens in")
    before = chat.live.inner_text()
    expect(chat.live).not_to_have_text(before)
    expect(chat.stop).to_be_visible()


def states(service: FakeService) -> list[list[tuple[str, str]]]:
    chats = service.store.chats.find(service.user)
    return [[(m.text, m.state) for m in service.store.messages.path(service.user, chat.id)] for chat in chats]


@pytest.mark.browser
def test_a_reply_goes_on_over_reloads_and_while_no_page_is_open(chat: Chat, service: FakeService) -> None:
    begin(chat, service)
    for _ in range(2):
        chat.page.reload()
        expect(chat.words.last).to_contain_text("Here is", timeout=PATIENCE_MS)
        expect(chat.questions).to_have_text(["Long story"])
        grows(chat)
    chat.open()
    expect(chat.live).to_contain_text("Still writing in “Long story”")
    service.script.release()
    unread = chat.page.locator("#hc-list .hc-unread")
    expect(unread).to_have_count(1, timeout=PATIENCE_MS)
    expect(chat.live).not_to_contain_text("Still writing")
    title = chat.page.get_by_role("button", name="Long story", exact=True)
    expect(title).to_have_attribute("aria-description", "A new reply")
    chat.go_to("Long story")
    expect(unread).to_have_count(0)
    expect(chat.replies).to_have_count(1)
    assert states(service) == [[("Long story", "complete"), (service.script.reply, "complete")]]


@pytest.mark.browser
def test_a_second_tab_sees_replies_stops_them_and_waits_with_the_first(
    chat: Chat, second: Chat, service: FakeService
) -> None:
    chat.ask("First")
    second.open(path(chat))
    expect(second.replies).to_have_count(1)
    begin(chat, service, "Second")
    expect(second.questions).to_have_text(["First", "Second"], timeout=PATIENCE_MS)
    grows(second)
    grows(chat)
    second.stop.click()
    for tab in (second, chat):
        tab.idle()
        expect(tab.replies).to_have_count(2)
        expect(tab.replies.last).to_contain_text("stopped")
    begin(chat, service, "Third")
    second.send("Fourth")
    for tab in (second, chat):
        expect(tab.page.locator(".hc-next")).to_contain_text("Fourth", timeout=PATIENCE_MS)
        expect(tab.box).to_have_value("")
    service.script = Script()  # of the reply that follows
    chat.stop.click()
    for tab in (second, chat):
        expect(tab.replies).to_have_count(4, timeout=PATIENCE_MS)
        expect(tab.page.locator(".hc-next")).to_have_count(0)
        tab.idle()
    asked = ["First", "Second", "Third", "Fourth"]
    expect(chat.questions).to_have_text(asked)
    service.slot.status = SlotStatus("SmolLM2 135M", "loading")
    chat.send("Fifth")
    expect(second.questions).to_have_text([*asked, "Fifth"], timeout=PATIENCE_MS)
    second.stop.click()  # in the queue
    for tab in (chat, second):
        tab.idle()
        expect(tab.questions).to_have_text([*asked, "Fifth"])
        expect(tab.page.get_by_text("Not answered")).to_be_visible()
        expect(tab.box).to_have_value("")


@pytest.mark.browser
def test_the_picker_follows_a_model_that_another_tab_chose(
    chat: Chat, second: Chat, service: FakeService
) -> None:
    second.open()
    for name in ("Qwen3 0.6B", "SmolLM2 135M", "Qwen3 0.6B"):
        service.slot.status = SlotStatus(name, "ready")
        for tab in (chat, second):
            expect(tab.page.locator("#hc-model input")).to_have_value(name)
