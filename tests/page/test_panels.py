"""Panels in place of a chat: their addresses, back and forward, the theme, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from hierchat.store import Store
from tests.page.chats import stored_chat
from tests.testing.browser import Chat
from tests.testing.fake_service import FakeService

pytestmark = pytest.mark.browser


def test_a_panel_has_an_address_and_the_browser_goes_back_from_it(chat: Chat, service: FakeService) -> None:
    number = stored_chat(service.store, "Story", 2)
    chat.open(f"?c={number}")
    expect(chat.replies).to_have_count(2)
    chat.view("Settings")
    page = chat.page
    expect(page).to_have_url(re.compile(r"\?view=settings$"))
    expect(page.locator("#hc-theme")).to_be_visible()
    expect(page.locator("#hc-box")).to_be_hidden()
    expect(page.locator("#hc-links [aria-current]")).to_have_text("Settings")
    page.reload()
    expect(page.locator("#hc-theme")).to_be_visible()
    page.go_back()
    expect(chat.replies).to_have_count(2)
    expect(page.locator("#hc-theme")).to_be_hidden()
    page.go_forward()
    expect(page.locator("#hc-theme")).to_be_visible()
    page.locator("#hc-new").click()
    expect(page.locator("#hc-empty")).to_be_visible()
    expect(page.locator("#hc-box")).to_be_visible()


def test_what_may_draft_is_kept(chat: Chat, service: FakeService) -> None:
    user = service.store.users.ensure("local")
    chat.open("?view=settings")
    choice = chat.page.locator("#hc-drafts-from")
    expect(choice.get_by_label("All of my chats")).to_be_checked()
    choice.get_by_label("Nothing").check()
    chat.until(lambda: service.store.users.drafts_from(user) == "none")
    chat.page.reload()
    expect(choice.get_by_label("Nothing")).to_be_checked()
    chat.page.get_by_role("button", name="Settings as they were").click()
    expect(choice.get_by_label("All of my chats")).to_be_checked()
    expect(chat.page.locator("#hc-settings-told")).to_contain_text("as they were at first")
    assert service.store.users.drafts_from(user) == "all"


def test_forgetting_everything_asks_twice_and_tells_what_went(chat: Chat, service: FakeService) -> None:
    stored_chat(service.store, "Secret plans", 2)
    stored_chat(service.store, "Other", 1)
    chat.open("?view=settings")
    page = chat.page
    forget = page.get_by_role("button", name="Forget everything…")
    for answer in (None, "no", "forget"):
        forget.click()
        expect(page.get_by_role("dialog")).to_contain_text("2 chats with 6 messages")
        if answer is None:
            page.get_by_role("button", name="Cancel").click()
            continue
        page.get_by_role("button", name="Go on").click()
        page.get_by_role("dialog").get_by_role("textbox").fill(answer)
        page.get_by_role("button", name="Delete", exact=True).click()
        if answer == "no":
            expect(page.get_by_role("dialog")).to_have_count(0)
            assert len(service.store.chats.find(service.store.users.ensure("local"))) == 2
    expect(page.locator("#hc-live")).to_contain_text("Deleted for good: 2 chats with 6 messages")
    expect(page.locator("#hc-list")).to_contain_text("Your chats will appear here.")
    expect(forget).to_have_count(0)
    page.locator("#hc-new").click()
    service.script.seconds = 0
    chat.ask("A new beginning")


def test_a_backup_is_a_whole_copy(
    chat: Chat, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERCHAT_DATA", str(tmp_path))
    stored_chat(service.store, "Story", 2)
    chat.open("?view=settings")
    chat.page.get_by_role("button", name="Back up now").click()
    expect(chat.page.locator("#hc-settings-told")).to_contain_text("and checked")
    (copy,) = (tmp_path / "backups").glob("*.db")
    with Store.open(copy) as store:
        assert [c.title for c in store.chats.find(store.users.ensure("local"))] == ["Story"]
