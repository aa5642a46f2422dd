"""Tags, titles of models, edited replies, and who wrote them, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.page.chats import stored_chat
from tests.testing import browser as driving
from tests.testing.browser import Chat
from tests.testing.fake_service import REPLY, FakeService

pytestmark = pytest.mark.browser


def titles(chat: Chat) -> Locator:
    return chat.page.locator("#hc-list .hc-title")


def tags(chat: Chat) -> Locator:
    return chat.page.get_by_role("group", name="Tags").get_by_role("button")


def test_tags_are_given_in_a_dialog_and_filter_the_list(chat: Chat, service: FakeService) -> None:
    ids = {title: stored_chat(service.store, title, 1) for title in ("A", "B", "C")}
    user = service.store.users.ensure("local")
    service.store.chats.set_tags(user, ids["A"], ["work"])
    chat.open()
    expect(tags(chat)).to_have_text(["work"])
    chat.menu("B", "Tags")
    dialog = chat.page.get_by_role("dialog", name="Tags of “B”")
    field = dialog.get_by_role("textbox", name="New tags")
    expect(field).to_be_focused()
    dialog.get_by_role("checkbox", name="work").check()
    field.fill("two words, , work")
    dialog.get_by_role("button", name="Add").click()
    expect(dialog.get_by_role("checkbox", name="two words")).to_be_checked()
    field.fill("WORK")
    dialog.get_by_role("button", name="Add").click()
    expect(dialog.get_by_role("checkbox")).to_have_count(2)
    chat.shot("tags-dialog")
    dialog.get_by_role("button", name="Save").click()
    expect(tags(chat)).to_have_text(["two words", "work"])
    assert service.store.chats.get(user, ids["B"]).tags == ("two words", "work")
    expect(chat.page.locator("#hc-list li").filter(has_text="two words")).to_have_count(1)
    tags(chat).filter(has_text="work").click()
    expect(titles(chat)).to_have_text(["B", "A"])
    expect(chat.page.get_by_role("textbox", name="Search chats")).to_have_value("tag:work")
    expect(tags(chat).filter(has_text="work")).to_have_attribute("aria-pressed", "true")
    tags(chat).filter(has_text="two words").click()
    expect(titles(chat)).to_have_text(["B"])
    chat.shot("tags-wide")
    tags(chat).filter(has_text="two words").click()
    expect(titles(chat)).to_have_text(["B", "A"])
    chat.page.get_by_role("button", name="Show chats of all tags").click()
    expect(titles(chat)).to_have_text(["C", "B", "A"])
    expect(chat.page.get_by_role("textbox", name="Search chats")).to_have_value("")
    chat.menu("B", "Tags")
    dialog.get_by_role("checkbox", name="two words").uncheck()
    chat.page.keyboard.press("Escape")
    chat.menu("B", "Tags")
    expect(dialog.get_by_role("checkbox", name="two words")).to_be_checked()
    dialog.get_by_role("checkbox", name="two words").uncheck()
    dialog.get_by_role("button", name="Save").click()
    expect(tags(chat)).to_have_text(["work"])
    chat.menu("C", "Tags")
    field = chat.page.get_by_role("textbox", name="New tags")
    field.fill("animals, fun")
    field.press("Enter")  # saves
    expect(dialog).to_be_hidden()
    expect(tags(chat)).to_have_text(["animals", "fun", "work"])
    assert service.store.chats.get(user, ids["C"]).tags == ("animals", "fun")


def edit(chat: Chat, place: int = -1) -> Locator:
    turn = chat.page.locator("#hc-thread .hc-reply").nth(place)
    turn.get_by_role("button", name="Edit").click()
    field = turn.get_by_role("textbox", name="Edit the reply")
    expect(field).to_be_focused()
    return field


def test_an_edited_reply_is_a_version_of_the_users(chat: Chat, service: FakeService) -> None:
    chat_id = stored_chat(service.store, "Story", 2)
    user = service.store.users.ensure("local")
    chat.open(f"?c={chat_id}")
    field = edit(chat, 0)
    assert field.input_value() == REPLY
    chat.shot("editing-reply")
    field.press("Escape")
    expect(field).to_have_count(0)
    expect(chat.replies).to_have_count(2)
    edit(chat, 0).press("Control+Enter")  # as it was: no version
    expect(chat.replies.first).not_to_contain_text("1/2")
    edit(chat, 0).fill("My **own** words,\n\n    code = 1\n")
    chat.page.get_by_role("button", name="Save as your version of the reply").click()
    expect(chat.replies).to_have_count(1)
    expect(chat.words).to_contain_text("My own words,")
    expect(chat.replies).to_contain_text("edited by you")
    expect(chat.replies).to_contain_text("2/2")
    expect(chat.replies.get_by_role("button", name="Sources")).to_have_count(0)
    expect(chat.replies.locator("details")).to_have_count(0)
    edited = service.store.messages.path(user, chat_id)[-1]
    assert (edited.text, edited.edited) == ("My **own** words,\n\n    code = 1\n", True)
    chat.shot("edited-reply")
    service.script.seconds = 0
    chat.ask("Go on")
    assert [m.id for m in service.store.messages.path(user, chat_id)][1] == edited.id
    chat.replies.first.get_by_role("button", name="Previous version").click()
    expect(chat.replies).to_have_count(2)
    expect(chat.replies.first).not_to_contain_text("edited by you")


def test_a_title_of_the_model_comes_quietly(
    chromium: Browser, server: tuple[FakeService, str], service: FakeService
) -> None:
    with driving.visiting(chromium, server[1], alone=True) as chat:
        chat.page.clock.install()
        chat.open()
        service.script.seconds = 0
        service.script.reading_seconds = 0
        chat.send("What is a suffix array?")
        chat.page.clock.run_for(3000)
        expect(chat.replies).to_have_count(1)
        expect(titles(chat)).to_have_text(["What is a suffix array?"])
        user = service.store.users.ensure("local")
        (waiting,) = [one for one in service.store.chats.untitled("k", 0.0) if one.user_id == user]
        assert service.store.chats.title_by_model(waiting, "k", "Suffix arrays")
        service.titles.count += 1
        titles(chat).first.focus()
        chat.page.clock.run_for(10_000)
        expect(titles(chat)).to_have_text(["Suffix arrays"])
        expect(chat.page.locator("#hc-title")).to_have_text("Suffix arrays")
        expect(titles(chat).first).to_be_focused()
