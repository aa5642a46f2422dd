"""The list of chats: pages, what stays in place, keys, and the browser's own history, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.page.chats import stored_chat
from tests.testing.browser import Chat
from tests.testing.deleting import delete_for_good
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser
MANY = 330


@pytest.fixture
def many(service: FakeService) -> FakeService:
    """A user with more chats than any page of the list holds."""
    user = service.store.users.ensure("local")
    for number in range(MANY):
        service.store.chats.create(user, f"Chat {number:03}")
    yield service
    with service.store.connection.write() as db:  # one by one takes minutes
        db.execute("DELETE FROM conversations")


def to_the_end_of_the_list(chat: Chat) -> None:
    chat.page.locator("#hc-list").evaluate("e => { e.scrollTop = e.scrollHeight }")


def test_all_chats_come_while_scrolling(chat: Chat, many: FakeService) -> None:
    chat.open()
    entries = chat.page.locator("#hc-list li")
    expect(entries).to_have_count(100)
    for listed in (200, 300, MANY):
        to_the_end_of_the_list(chat)
        expect(entries).to_have_count(listed)
    expect(chat.page.locator("#hc-list .hc-more")).to_have_count(0)
    last = chat.page.get_by_role("button", name="Chat 000", exact=True)
    to_the_end_of_the_list(chat)
    place = chat.page.locator("#hc-list").evaluate("e => e.scrollTop")
    last.click()
    expect(chat.page.locator("#hc-title")).to_contain_text("Chat 000")
    expect(entries).to_have_count(MANY)  # opening one does not throw the list back to its beginning
    assert chat.page.locator("#hc-list").evaluate("e => e.scrollTop") == pytest.approx(place, abs=40)
    many.script.seconds = 0
    chat.ask("It comes to the top")
    expect(entries).to_have_count(100)
    expect(entries.first).to_contain_text("Chat 000")
    expect(entries.first).to_be_in_viewport()
    search = chat.page.get_by_role("textbox", name="Search chats")
    search.fill("chat")
    expect(entries).to_have_count(100)
    to_the_end_of_the_list(chat)
    expect(entries).to_have_count(200)
    search.fill("chat 001")
    expect(entries).to_have_count(1)


def test_one_tab_stop_and_keys_inside(chat: Chat, service: FakeService) -> None:
    for number in range(5):
        stored_chat(service.store, f"Chat {number}", 1)
    chat.open()
    expect(chat.page.locator("#hc-list li")).to_have_count(5)
    assert chat.page.locator("#hc-list button[tabindex='0']").count() == 1
    chat.page.get_by_role("textbox", name="Search chats").focus()
    keys = chat.page.keyboard

    def focused(name: str) -> None:
        expect(chat.page.get_by_role("button", name=name, exact=True)).to_be_focused()

    for key, name in (
        ("Tab", "Chat 4"), ("ArrowDown", "Chat 3"), ("End", "Chat 0"), ("ArrowDown", "Chat 0"), ("ArrowUp", "Chat 1"),
        ("ArrowRight", "Options for Chat 1"), ("ArrowDown", "Chat 0"), ("Home", "Chat 4"),
        ("ArrowDown", "Chat 3"),
    ):  # fmt: skip
        keys.press(key)
        focused(name)
    keys.press("Enter")
    expect(chat.page.locator("#hc-title")).to_contain_text("Chat 3")
    focused("Chat 3")
    keys.press("Tab")
    expect(chat.page.locator("#hc-list :focus")).to_have_count(0)
    keys.press("Shift+Tab")
    focused("Chat 3")
    keys.press("F2")
    expect(chat.page.get_by_role("dialog", name="Rename this chat")).to_be_visible()
    keys.type("Renamed")
    keys.press("Control+Enter")
    focused("Renamed")
    keys.press("F2")
    for _ in range(6):
        keys.press("Tab")
        assert chat.page.evaluate("document.querySelector('dialog').contains(document.activeElement)"
                                  " || document.activeElement === document.body")  # fmt: skip
    keys.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    focused("Renamed")
    keys.press("Delete")
    expect(chat.page.locator("#hc-list li")).to_have_count(4)
    expect(chat.page.locator("#hc-list :focus")).to_have_count(1)


def test_back_and_forward_walk_through_the_chats(chat: Chat, service: FakeService) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in ("A", "B", "C")}
    chat.open()
    title = chat.page.locator("#hc-title")

    def shown(name: str) -> None:
        expect(title).to_contain_text(name)
        expect(chat.page).to_have_url(re.compile(rf"\?c={ids[name]}$" if name in ids else r"/$"))

    def choose(name: str) -> None:
        chat.page.get_by_role("button", name=name, exact=True).click()
        shown(name)

    choose("A")
    choose("B")
    chat.page.locator("#hc-new").click()
    shown("New chat")
    service.script.seconds = 0
    entries = chat.page.evaluate("history.length")
    chat.ask("D")
    chat.ask("and more")
    assert chat.page.evaluate("history.length") == entries  # a reply is no step
    expect(chat.page).to_have_url(re.compile(r"\?c=\d+$"))
    chat.page.go_back()
    shown("B")
    chat.page.go_back()
    shown("A")
    chat.page.go_back()
    shown("New chat")
    chat.page.go_forward()
    shown("A")
    chat.page.go_forward()
    shown("B")
    chat.page.go_forward()
    expect(title).to_contain_text("D")
    expect(chat.replies).to_have_count(2)
    delete_for_good(service.store, service.store.users.ensure("local"), ids["B"])
    chat.page.go_back()
    shown("New chat")
    expect(chat.page.locator("#hc-live")).to_contain_text("has been deleted")
    expect(chat.page.locator("#hc-empty")).to_be_visible()
    chat.page.go_back()
    shown("A")
    expect(chat.page.locator("#hc-live")).not_to_contain_text("deleted")
