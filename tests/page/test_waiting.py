"""Messages that wait: for the reply in their own chat, and for that of another, in a real browser."""

import pytest
from playwright.sync_api import Locator, expect

from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService, Script

pytestmark = pytest.mark.browser


def waiting(chat: Chat) -> Locator:
    return chat.page.get_by_role("list", name="Messages that will be sent next").get_by_role("listitem")


def wait(chat: Chat, text: str, count: int) -> None:
    """Send one more while a reply is written; so many wait now."""
    chat.send(text)
    expect(waiting(chat)).to_have_count(count)
    expect(chat.box).to_have_value("")


def test_a_message_is_edited_withdrawn_kept_over_a_reload_and_goes_out_by_itself(
    chat: Chat, service: FakeService
) -> None:
    service.script.hold()
    chat.begin("First")
    wait(chat, "Secnd", 1)
    wait(chat, "Third", 2)
    wait(chat, "Fourth", 3)
    chat.press("Do not send “Third”")
    expect(waiting(chat)).to_have_count(2)
    chat.box.fill("Typed since")
    chat.page.reload()
    expect(waiting(chat)).to_have_count(2, timeout=driving.PATIENCE_MS)
    chat.press("Edit “Secnd”, which will be sent next")
    expect(waiting(chat)).to_have_count(1)
    expect(chat.box).to_have_value("Secnd\n\nTyped since")
    expect(chat.box).to_be_focused()
    wait(chat, "Second", 2)
    service.script = Script()  # of the replies that follow
    chat.page.keyboard.press("Escape")  # stopped, the reply has ended, too
    expect(chat.replies).to_have_count(3)
    expect(waiting(chat)).to_have_count(0)
    expect(chat.questions).to_have_text(["First", "Fourth", "Second"])


def test_chats_wait_for_each_other_and_stop_and_fail_apart(chat: Chat, service: FakeService) -> None:
    def queued(text: str) -> None:
        chat.send(text)
        expect(chat.live).to_contain_text("Waiting for one other reply.")
        expect(chat.questions.last).to_have_text(text)
        expect(chat.box).to_have_value("")

    service.script.hold()
    chat.begin("First")
    chat.new()
    queued("Halted")
    chat.box.fill("Typed meanwhile")
    chat.stop.click()
    chat.idle()
    expect(chat.questions).to_have_text(["Halted"])
    expect(chat.page.get_by_text("Not answered")).to_be_visible()
    expect(chat.box).to_have_value("Typed meanwhile")
    expect(chat.live).to_contain_text("Still writing in “First”")

    chat.new()
    queued("Second")
    chat.go_to("First")
    expect(chat.words.last).to_contain_text("Here is")
    service.script.raises = RuntimeError("no luck")
    chat.stop.click()
    expect(chat.live).to_contain_text("“Second”: ", timeout=driving.PATIENCE_MS)
    expect(chat.replies.last).to_contain_text("stopped")
    service.script.raises = None
    chat.go_to("Second")
    expect(chat.questions).to_have_text(["Second"])
    chat.new()
    chat.begin("Third")
    chat.go_to("Second")
    queued("Fourth")  # and a new one does not hide what failed
    service.script.release()
    expect(chat.questions).to_have_text(["Second", "Fourth"])
    expect(chat.replies).to_have_count(1, timeout=driving.PATIENCE_MS)
    chat.idle()
    expect(chat.page.locator(".hc-branches")).to_have_count(0)
    chats, path = service.store.chats.find(service.user), service.store.messages.path
    asked = [[one.text for one in path(service.user, chat.id) if one.role == "user"] for chat in chats]
    assert sorted(asked) == [["First"], ["Halted"], ["Second", "Fourth"], ["Third"]]
