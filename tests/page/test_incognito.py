"""A chat that leaves nothing, in a real browser."""

import pytest
from playwright.sync_api import Route, expect

from hierchat.store import NotFound
from tests.page.stored import stored_chat
from tests.testing.browser import Chat
from tests.testing.deleting import on_disk
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
WORD = "quincunx"


def begin(chat: Chat, service: FakeService) -> int:
    """Send a first message into an incognito chat; its id."""
    switch = chat.page.get_by_role("switch", name="Incognito")
    switch.click()
    expect(switch).to_be_checked()
    chat.send(f"What is a {WORD}?")
    expect(chat.page.locator("#hc-incognito")).to_contain_text("is erased when you leave it")
    expect(chat.words.last).to_contain_text("Here is")
    with service.store.connection.read() as db:
        return int(db.execute("SELECT max(id) FROM conversations WHERE incognito").fetchone()[0])


def gone(chat: Chat, service: FakeService, conversation: int) -> None:
    """Neither the chat nor a byte of it is left; the file is rewritten a moment later."""

    def is_gone() -> bool:
        try:
            service.store.chats.get(service.user, conversation)
        except NotFound:
            return WORD.encode() not in on_disk(service.store.path)
        return False

    chat.until(is_gone)


def test_it_stands_in_no_list_and_no_address_and_goes_when_it_is_left(
    visitor: Chat, service: FakeService
) -> None:
    stored_chat(service.store, "Other", 1)
    visitor.open()
    page = visitor.page
    secret = begin(visitor, service)
    assert "c=" not in page.url
    expect(visitor.titles).to_have_text(["Other"])
    visitor.ask("And more of it?")
    visitor.go_to("Other")
    gone(visitor, service, secret)
    visitor.new()
    expect(page.get_by_role("switch", name="Incognito")).not_to_be_checked()
    service.script.hold()
    secret = begin(visitor, service)
    visitor.new()  # in mid-reply
    gone(visitor, service, secret)
    assert service.in_progress.all_of(service.user) == []
    service.script.release()
    begin(visitor, service)
    visitor.idle()
    visitor.press("Keep this chat")
    expect(visitor.titles).to_have_text(["What is a quincunx?", "Other"])
    page.reload()
    expect(visitor.questions).to_contain_text(WORD)


def test_the_switch_is_of_the_chat_that_the_page_goes_to(chat: Chat) -> None:
    """The step there and the switch are handled side by side: the step would turn it off again."""
    page = chat.page
    held: list[Route] = []
    gone = False
    page.route("**/run/*", lambda route: route.continue_() if gone else held.append(route))
    switch = page.get_by_role("switch", name="Incognito")
    expect(switch).not_to_be_checked()
    page.evaluate(
        "for (const place of ['#hc-new', '[data-act=hc_incognito]']) document.querySelector(place).click()"
    )
    chat.until(lambda: len(held) > 0)
    page.wait_for_timeout(300)
    assert len(held) == 1
    gone = True
    held[0].continue_()
    expect(switch).to_be_checked()


def test_it_goes_with_its_page(
    second: Chat, service: FakeService, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierchat.page.stream.LEFT_SECONDS", 0.5)
    second.open()
    for leave in (lambda: second.view("Settings"), second.page.reload, second.page.close):
        second.new()
        secret = begin(second, service)
        second.idle()
        leave()
        gone(chat, service, secret)
