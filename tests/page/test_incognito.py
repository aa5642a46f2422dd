"""A chat that leaves nothing, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from hierchat.store import NotFound
from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
WORD = "quincunx"


def begin(chat: Chat, service: FakeService) -> int:
    """An incognito chat with a reply; its id."""
    chat.page.get_by_role("switch", name="Incognito").click()
    expect(chat.page.get_by_role("switch", name="Incognito")).to_be_checked()
    service.script.seconds = 0
    chat.ask(f"What is a {WORD}?")
    expect(chat.page.locator("#hc-incognito")).to_contain_text("is erased when you leave it")
    with service.store.connection.read() as db:
        return int(db.execute("SELECT max(id) FROM conversations WHERE incognito").fetchone()[0])


def gone(chat: Chat, service: FakeService, conversation: int) -> None:
    for _ in range(100):
        try:
            service.store.chats.get(service.store.users.ensure("local"), conversation)
        except NotFound:
            break
        chat.page.wait_for_timeout(100)
    else:
        pytest.fail("it is still there")
    for _ in range(100):  # the file is rewritten a moment later
        path = service.store.path
        if not any(WORD.encode() in file.read_bytes() for file in path.parent.glob(path.name + "*")):
            return
        chat.page.wait_for_timeout(100)
    pytest.fail("its words are still in the file")


def test_it_stands_in_no_list_and_no_address_and_goes_when_it_is_left(
    chat: Chat, service: FakeService
) -> None:
    stored_chat(service.store, "Other", 1)
    chat.open()
    secret = begin(chat, service)
    page = chat.page
    assert "c=" not in page.url
    expect(page.locator("#hc-list .hc-title")).to_have_text(["Other"])
    chat.ask("And more of it?")
    expect(chat.replies).to_have_count(2)
    chat.shot("incognito")
    page.get_by_role("button", name="Other", exact=True).click()
    expect(page.locator("#hc-incognito .hc-incognito-line")).to_have_count(0)
    gone(chat, service, secret)
    page.locator("#hc-new").click()
    expect(page.get_by_role("switch", name="Incognito")).not_to_be_checked()


@pytest.mark.parametrize("way", ["reload", "close", "panel"])
def test_it_goes_with_its_page(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService, chat: Chat, way: str
) -> None:
    with driving.visiting(chromium, server[1]) as visitor:
        visitor.open()
        secret = begin(visitor, service)
        if way == "reload":
            visitor.page.reload()
            expect(visitor.page.locator("#hc-empty")).to_be_visible()
        elif way == "panel":
            visitor.view("Settings")
        else:
            visitor.page.close()
        gone(chat, service, secret)


def test_a_reply_in_progress_stops_with_it(chat: Chat, service: FakeService) -> None:
    chat.page.get_by_role("switch", name="Incognito").click()
    service.script.seconds = 60
    chat.send(f"An endless {WORD}")
    expect(chat.words.last).to_contain_text("Here is")
    with service.store.connection.read() as db:
        secret = int(db.execute("SELECT max(id) FROM conversations WHERE incognito").fetchone()[0])
    chat.page.locator("#hc-new").click()
    gone(chat, service, secret)
    assert service.in_progress.all_of(service.store.users.ensure("local")) == []


def test_it_can_be_kept_after_all(chat: Chat, service: FakeService) -> None:
    begin(chat, service)
    chat.page.get_by_role("button", name="Keep it after all").click()
    expect(chat.page.locator("#hc-list .hc-title")).to_have_count(1)
    expect(chat.page.locator("#hc-incognito .hc-incognito-line")).to_have_count(0)
    chat.page.reload()
    expect(chat.page.locator(".hc-user")).to_contain_text(WORD)
