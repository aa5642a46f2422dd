"""Messages that wait for a reply in their own chat, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, Script

pytestmark = pytest.mark.browser


def waiting(chat: Chat) -> Locator:
    return chat.page.get_by_role("list", name="Messages that will be sent next").get_by_role("listitem")


def box(chat: Chat) -> Locator:
    return chat.page.get_by_role("textbox", name="Message", exact=True)


def begun(chat: Chat, service: FakeService, seconds: float) -> None:
    service.script.seconds = seconds
    chat.send("First")
    expect(chat.page.locator("#hc-live")).to_contain_text("tokens in")


def test_it_waits_visibly_and_goes_out_by_itself(chat: Chat, service: FakeService) -> None:
    begun(chat, service, 8)
    service.script = Script(seconds=0.3)  # of the replies that follow
    chat.send("Second")
    expect(waiting(chat)).to_have_count(1)
    expect(waiting(chat)).to_contain_text("Will be sent next:Second")
    expect(box(chat)).to_have_value("")
    expect(box(chat)).to_be_focused()
    chat.send("Third")
    expect(waiting(chat)).to_have_count(2)
    chat.shot("waiting")
    expect(chat.replies).to_have_count(3, timeout=driving.PATIENCE_MS)
    expect(waiting(chat)).to_have_count(0)
    expect(chat.page.locator(".hc-user")).to_have_text(["First", "Second", "Third"])
    chat.idle()


def test_it_is_edited_or_not_sent(chat: Chat, service: FakeService) -> None:
    begun(chat, service, 60)
    chat.send("Secnd")
    expect(waiting(chat)).to_have_count(1)
    expect(box(chat)).to_have_value("")
    chat.send("Third")
    expect(waiting(chat)).to_have_count(2)
    expect(box(chat)).to_have_value("")
    chat.page.get_by_role("button", name="Do not send “Third”").click()
    expect(waiting(chat)).to_have_count(1)
    box(chat).fill("Typed since")
    chat.page.get_by_role("button", name="Edit “Secnd”, which will be sent next").click()
    expect(waiting(chat)).to_have_count(0)
    expect(box(chat)).to_have_value("Secnd\n\nTyped since")
    expect(box(chat)).to_be_focused()
    service.script = Script(seconds=0)  # of the replies that follow
    chat.send("Second")
    expect(waiting(chat)).to_have_count(1)
    chat.page.keyboard.press("Escape")  # stopped, the reply has ended, too
    expect(chat.replies).to_have_count(2)
    expect(chat.page.locator(".hc-user")).to_have_text(["First", "Second"])


def test_after_a_reload_it_still_waits(chat: Chat, service: FakeService) -> None:
    begun(chat, service, 60)
    chat.send("Second")
    expect(waiting(chat)).to_have_count(1)
    expect(box(chat)).to_have_value("")
    chat.send("Third")
    expect(waiting(chat)).to_have_count(2)
    expect(box(chat)).to_have_value("")
    box(chat).fill("Typed since")
    chat.page.reload()
    expect(waiting(chat)).to_have_count(2, timeout=driving.PATIENCE_MS)
    expect(box(chat)).to_have_value("Typed since")
    chat.page.get_by_role("button", name="Edit “Second”, which will be sent next").click()
    expect(box(chat)).to_have_value("Second\n\nTyped since")
    service.script = Script(seconds=0)  # of the replies that follow
    chat.page.locator("#hc-stop").click()
    expect(chat.replies).to_have_count(2)
    expect(chat.page.locator(".hc-user")).to_have_text(["First", "Third"])


def test_it_goes_out_while_no_page_is_open(chat: Chat, service: FakeService) -> None:
    begun(chat, service, 60)
    service.script = Script(seconds=0.3)  # of the replies that follow
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files([{"name": "a.txt", "mimeType": "", "buffer": b"text"}])
    expect(chat.page.get_by_role("list", name="Attached files").get_by_role("listitem")).to_have_count(1)
    chat.send("Second")
    expect(waiting(chat)).to_have_count(1)
    chat.page.goto("about:blank")
    user = service.store.users.ensure("local")
    service.in_progress.all_of(user)[0].stop.set()
    while service.in_progress.all_of(user):
        chat.page.wait_for_timeout(100)
    (conversation,) = service.store.chats.find(user)
    path = service.store.messages.path(user, conversation.id)
    assert [message.text for message in path if message.role == "user"] == ["First", "Second"]
    assert path[-1].state == "complete"
    assert [file.name for file in service.store.messages.attachments(user, path[2].id)] == ["a.txt"]
    chat.open()
    chat.page.get_by_role("button", name="First", exact=True).click()
    expect(chat.replies).to_have_count(2)
    expect(box(chat)).to_have_value("")
    expect(chat.page.get_by_role("list", name="Attached files")).to_have_count(0)


def test_after_a_reply_that_failed_it_goes_back_into_the_box(chat: Chat, service: FakeService) -> None:
    service.script.fail = "The model ran out of memory."
    begun(chat, service, 3)
    chat.send("Second")
    expect(waiting(chat)).to_have_count(1)
    expect(chat.page.locator("#hc-live").get_by_role("alert")).to_contain_text("ran out of memory")
    expect(box(chat)).to_have_value("Second")
    expect(waiting(chat)).to_have_count(0)
    expect(chat.page.locator(".hc-user")).to_have_text(["First"])


def test_a_chat_that_is_deleted_takes_it_along(chat: Chat, service: FakeService) -> None:
    begun(chat, service, 60)
    chat.send("Second")
    expect(waiting(chat)).to_have_count(1)
    chat.menu("First", "Delete")
    expect(waiting(chat)).to_have_count(0)
    expect(chat.page.locator("#hc-title")).to_have_text("New chat")
    chat.idle()
    assert service.store.chats.find(service.store.users.ensure("local")) == []
