"""Sending, waiting, stopping and continuing in several chats of one page, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def box(chat: Chat):
    return chat.page.locator("#hc-box textarea")


def open_chat(chat: Chat, title: str) -> None:
    chat.page.get_by_role("button", name=title, exact=True).click()
    expect(chat.page.locator("#hc-title")).to_have_text(title)


def titles(service: FakeService) -> list[str]:
    return [c.title for c in service.store.chats.find(service.store.users.ensure("local"))]


def test_a_message_waits_for_the_reply_in_another_chat(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 60
    chat.send("First")
    expect(chat.words.last).to_contain_text("Here is")
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    expect(chat.page.locator("#hc-send")).to_be_visible()
    chat.send("Second")
    expect(chat.page.locator("#hc-live")).to_contain_text("Waiting for one other reply.")
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["Second"])
    expect(chat.page.locator("#hc-list li.hc-current .hc-title")).to_have_text("Second")
    expect(box(chat)).to_have_value("")
    chat.shot("queued")
    open_chat(chat, "First")
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    expect(chat.words.last).to_contain_text("Here is")
    open_chat(chat, "Second")
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["Second"])
    service.script.seconds = 0
    expect(chat.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
    chat.idle()
    open_chat(chat, "First")
    expect(chat.replies).to_have_count(1)
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["First"])
    assert sorted(titles(service)) == ["First", "Second"]
    user = service.store.users.ensure("local")
    for conversation in service.store.chats.find(user):
        path = service.store.messages.path(user, conversation.id)
        assert [m.role for m in path] == ["user", "assistant"]
        assert path[0].text == conversation.title
        assert path[1].state == "complete"


def test_stop_stops_the_reply_on_the_screen_and_no_other(chat: Chat, service: FakeService) -> None:
    service.script.seconds = 60
    chat.send("First")
    expect(chat.words.last).to_contain_text("Here is")
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    expect(chat.page.locator("#hc-send")).to_be_visible()
    chat.send("Second")
    expect(chat.page.locator("#hc-live")).to_contain_text("Waiting for one other reply.")
    box(chat).fill("Typed meanwhile")
    chat.page.locator("#hc-stop").click()
    chat.idle()
    expect(box(chat)).to_have_value("Second\n\nTyped meanwhile")
    expect(chat.page.locator("#hc-list .hc-title")).to_have_text(["First"])  # no empty chat stays
    expect(chat.page.locator("#hc-live")).to_contain_text("Still writing in “First”")
    open_chat(chat, "First")
    expect(chat.page.locator("#hc-stop")).to_be_visible()
    chat.page.locator("#hc-stop").click()
    chat.idle()
    expect(chat.replies.last).to_contain_text("stopped")
    assert titles(service) == ["First"]


def test_a_failure_in_a_chat_that_is_not_on_the_screen_keeps_its_question(
    chat: Chat, service: FakeService
) -> None:
    service.script.seconds = 60
    chat.send("First")
    expect(chat.words.last).to_contain_text("Here is")
    chat.page.locator("#hc-new").click()
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    expect(chat.page.locator("#hc-send")).to_be_visible()
    chat.send("Second")
    expect(chat.page.locator("#hc-live")).to_contain_text("Waiting for one other reply.")
    open_chat(chat, "First")
    service.script.raises = RuntimeError("no luck")
    chat.page.locator("#hc-stop").dispatch_event("click")
    expect(chat.page.locator("#hc-live")).to_contain_text("“Second”: ", timeout=driving.PATIENCE_MS)
    service.script.raises, service.script.seconds = None, 0
    open_chat(chat, "Second")
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["Second"])
    chat.ask("Third")  # and a new one does not hide it
    expect(chat.page.locator("#hc-chat .hc-user")).to_have_text(["Second", "Third"])
    expect(chat.page.locator(".hc-branches")).to_have_count(0)


def test_a_reply_that_was_cut_can_be_continued(chat: Chat, service: FakeService) -> None:
    service.script.seconds, service.script.finish, service.script.reply = 0, "length", "One two three."
    chat.ask("Story")
    expect(chat.replies.last).to_contain_text("cut at the limit, after")
    chat.shot("cut")
    service.script.finish, service.script.reply, service.script.seconds = "end", "Four five six.", 1
    chat.replies.last.get_by_role("button", name="Continue", exact=True).click()
    expect(chat.words.last).to_have_text("One two three. Four five six.")
    chat.idle()
    expect(chat.words).to_have_count(1)
    expect(chat.replies.last).not_to_contain_text("cut at")
    expect(chat.page.get_by_role("button", name="Continue", exact=True)).to_have_count(0)
